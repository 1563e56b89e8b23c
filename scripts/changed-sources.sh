#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# changed-sources.sh N: the .cpp files that the last N commits have changed, and those that include a header which they have
# changed. All, where the repository does not go back as far.
set -eu
cd "$(dirname "$0")/.."
if ! git rev-parse -q --verify "HEAD~$1" >/dev/null; then
    git ls-files '*.cpp'
    exit
fi
git diff --name-only --diff-filter=d "HEAD~$1" -- '*.cpp' '*.hpp' '*.h' | while read -r file; do
    case $file in
    *.cpp) echo "$file" ;;
    *) git grep -lF "#include \"$file\"" -- '*.cpp' || : ;;
    esac
done | sort -u
