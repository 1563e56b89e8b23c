// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rsrun: runs a program and moves its TCP connections to a faster path if there is one. See man/rsrun.1.md.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/common/failure.hpp"
#include "util/common/program.hpp"
#include "util/rsrun/machine.hpp"
#include "util/rsrun/names.hpp"
#include "util/rsrun/options.hpp"
#include "util/rsrun/parts.hpp"
#include "util/rsrun/records.hpp"
#include "util/rsrun/session.hpp"
#include "util/rsrun/target.hpp"

#ifndef RSRUN_CONFIG_DIR // set by the build
#define RSRUN_CONFIG_DIR "/etc/rdma/rsocket"
#endif

namespace {

using rsrun::Environment;
using rsrun::FabricParts;
using rsrun::Options;
using util::fail;

// Distinct from the statuses that programs return.
constexpr int own_failure = 125;

// The file for the records of the program's sockets; removed when this process ends. It has a folder of its own, and is
// writable by all if rsrun runs as root, since the program may have changed its user by then.
class RecordsFile {
  public:
    RecordsFile() {
        const char* parent = getenv("TMPDIR");
        folder_ = std::string(parent != nullptr && *parent == '/' ? parent : "/tmp") + "/rsrun.XXXXXX";
        if (mkdtemp(folder_.data()) == nullptr) {
            fail("--explain: no folder {} can be made: {}", folder_, strerror(errno));
        }
        const bool root = geteuid() == 0;
        const int fd = open(path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        const bool made = fd >= 0 && (!root || (fchmod(fd, 0666) == 0 && chmod(folder_.c_str(), 0711) == 0));
        const int error = errno;
        if (fd >= 0) {
            close(fd);
        }
        if (!made) {
            remove();
            fail("--explain: {} cannot be made: {}", path(), strerror(error));
        }
    }
    RecordsFile(const RecordsFile&) = delete;
    RecordsFile& operator=(const RecordsFile&) = delete;
    ~RecordsFile() { remove(); }
    [[nodiscard]] std::string path() const { return folder_ + "/records"; }

  private:
    void remove() const {
        unlink(path().c_str());
        rmdir(folder_.c_str());
    }
    std::string folder_;
};

std::string variable(const char* name) {
    const char* value = getenv(name);
    return value != nullptr ? value : "";
}

// The concatenation of first and rest, separated by a colon.
std::string in_front(const std::string& first, const std::string& rest) {
    return rest.empty() ? first : first + ":" + rest;
}

std::string absolute(const std::string& path) { return std::filesystem::absolute(path).string(); }

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const auto& word : words) {
        text += (text.empty() ? "" : " ") + word;
    }
    return text;
}

// Verbs alone unless another core is requested: tcp is for tests.
std::string cores(const Options& options) {
    const std::string set = variable("FI_RSTREAM_CORE");
    return !options.core.empty() ? options.core : !set.empty() ? set : "verbs";
}

// The libraries for the program: the preload library, if the program supports it, and the files for the fabric.
struct Libraries {
    std::string shim;
    std::optional<FabricParts> fabric;
    bool preload = true;
};

void add_fabric(Environment& result, const Options& options, const FabricParts& parts) {
    result.emplace_back("RSPRELOAD_FABRIC", "1");
    result.emplace_back("RSPRELOAD_FABRIC_WORKER", parts.worker);
    // For the worker only: the program itself may use libfabric.
    const auto set = [&](const char* name, const std::string& value) {
        result.emplace_back(std::string("RSPRELOAD_WORKER_") + name, value);
    };
    set("LD_LIBRARY_PATH", in_front(std::filesystem::path(parts.library).parent_path(), variable("LD_LIBRARY_PATH")));
    set("FI_PROVIDER_PATH", in_front(parts.provider_folder, variable("FI_PROVIDER_PATH")));
    set("FI_RSTREAM_CORE", cores(options));
    if (options.send_buffer) {
        set("RS_WMEM_DEFAULT", fmt::format("{}", *options.send_buffer));
    }
    if (options.recv_buffer) {
        set("RS_MEM_DEFAULT", fmt::format("{}", *options.recv_buffer));
    }
}

std::vector<std::string> resolved(const std::vector<std::string>& rules) {
    std::vector<std::string> all;
    for (const auto& rule : rules) {
        const auto some = rsrun::resolve_rule(rule);
        all.insert(all.end(), some.begin(), some.end());
    }
    return all;
}

Environment environment_for(const Options& options, const Libraries& libraries, const std::string& records) {
    Environment result;
    if (libraries.preload) {
        result.emplace_back("LD_PRELOAD", in_front(libraries.shim, variable("LD_PRELOAD")));
    }
    if (!options.only.empty()) {
        result.emplace_back("RSPRELOAD_RULES", joined(resolved(options.only)));
    }
    if (!options.config.empty()) {
        result.emplace_back("RSPRELOAD_CONFIG", absolute(options.config));
    }
    if (!options.log.empty()) {
        result.emplace_back("RSPRELOAD_LOG", absolute(options.log));
    }
    if (!records.empty()) {
        result.emplace_back("RSPRELOAD_EXPLAIN", records);
    }
    if (libraries.preload && libraries.fabric) {
        add_fabric(result, options, *libraries.fabric);
    }
    if (options.path == Options::Path::memory && !variable("RSPRELOAD_FABRIC").empty()) {
        result.emplace_back("RSPRELOAD_FABRIC", "0"); // another rsrun has started this one
    }
    return result;
}

// The bytes that a connection pins: its buffers, as they are before they grow, and an overhead.
uint64_t pinned_by_one(const Options& options) {
    constexpr uint64_t first_buffer = uint64_t{32} << 10;
    constexpr uint64_t beside = uint64_t{28} << 10;
    return options.send_buffer.value_or(first_buffer) + options.recv_buffer.value_or(first_buffer) + beside;
}

void check_readable(const char* option, const std::string& path) {
    struct stat status {};
    if (!path.empty() && (stat(path.c_str(), &status) != 0 || access(path.c_str(), R_OK) != 0)) {
        fail("{} {}: {}", option, path, strerror(errno));
    }
    if (S_ISDIR(status.st_mode)) {
        fail("{} {}: {}", option, path, strerror(EISDIR));
    }
}

void check_writable(const char* option, const std::string& path) {
    if (!path.empty() && !std::ofstream(path, std::ios::app)) {
        fail("{} {}: cannot be written: {}", option, path, strerror(errno));
    }
}

void report(const std::string& trouble) { fmt::print(stderr, "rsrun: {}\n", trouble); }

// The files for the fabric, if there is an RDMA device or it was requested. Only a request makes them mandatory:
// otherwise note describes the missing file, or why the fabric is not used.
std::optional<FabricParts> fabric_parts(const Options& options, const rsrun::Machine& machine, std::string& note) {
    if (options.path == Options::Path::memory) {
        note = "--path memory: connections to other hosts stay with the kernel";
        return std::nullopt;
    }
    const bool wanted = options.path == Options::Path::fabric || !options.core.empty();
    if (!wanted && !machine.has_active_port) {
        note =
            fmt::format("{}: connections to other hosts stay with the kernel",
                        machine.has_device ? "no port of an RDMA device is active" : "this machine has no RDMA device");
        return std::nullopt;
    }
    try {
        return rsrun::find_fabric_parts(rsrun::own_folder(), variable("FI_PROVIDER_PATH"));
    } catch (const util::Failure& e) {
        if (wanted) {
            throw;
        }
        note = fmt::format("{}; connections to other hosts stay with the kernel", e.what());
        return std::nullopt;
    }
}

void explain(const std::string& records, const std::string& file) {
    std::ifstream stream(records);
    std::stringstream text;
    text << stream.rdbuf();
    if (file.empty()) {
        std::istringstream lines(explanation(rsrun::read_records(text.str())));
        for (std::string line; std::getline(lines, line);) {
            report(line);
        }
    } else if (std::ofstream out(file, std::ios::trunc); !(out << text.str() << std::flush)) {
        fail("--explain={}: cannot be written: {}", file, strerror(errno));
    }
}

int run(const Options& options) {
    const std::string program = rsrun::find_program(options.command.front(), getenv("PATH"));
    check_readable("--config", options.config);
    check_writable("--log", options.log);
    check_writable("--explain", options.explain_file);
    const rsrun::Target target = rsrun::inspect(program);
    const rsrun::Machine machine = rsrun::Machine::inspect();
    std::string note;
    const Libraries libraries{rsrun::find_shim(rsrun::own_folder()), fabric_parts(options, machine, note),
                              target.preload};
    // Sockets that stay with the kernel work as without rsrun: print the reason only on request.
    const bool verbose = options.verbose || options.explain;
    if (verbose && !target.untouched.empty()) {
        report(target.untouched + "; its sockets stay with the kernel");
    } else if (verbose && libraries.fabric) {
        for (const auto& trouble : troubles(machine, {cores(options), pinned_by_one(options)})) {
            report(trouble);
        }
    } else if (options.verbose && !note.empty()) {
        report(note);
    }
    std::optional<RecordsFile> records;
    if (options.explain) {
        records.emplace();
    }
    const Environment environment = environment_for(options, libraries, records ? records->path() : std::string());
    if (options.verbose) {
        for (const auto& [name, value] : environment) {
            report(fmt::format("{}={}", name, value));
        }
        report("runs " + program);
    }
    if (!records) {
        return rsrun::become(options.command, environment);
    }
    const int status = rsrun::run_child(options.command, environment);
    explain(records->path(), options.explain_file);
    return status;
}

} // namespace

int main(int argc, char** argv) {
    const std::string name = util::program_name(argv[0]);
    try {
        const Options options = rsrun::parse_options({argv, argv + argc});
        if (options.help) {
            fmt::print("{}", rsrun::help_text(name));
            return 0;
        }
        if (options.version) {
            fmt::print("rsrun of rstream {}\n", PACKAGE_VERSION);
            return 0;
        }
        return run(options);
    } catch (const rsrun::NoProgram& e) {
        report(e.why);
        return e.status;
    } catch (const std::exception& e) {
        report(e.what());
    }
    return own_failure;
}
