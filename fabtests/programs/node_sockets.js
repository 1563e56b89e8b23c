// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// node_sockets.js WHAT server|client ADDRESS PORT: ends of connections, and servers of several processes.
'use strict';
const cluster = require('cluster');
const crypto = require('crypto');
const http = require('http');
const net = require('net');
const [what, role, address, port] = process.argv.slice(2);

const done = (text) => {
  console.log(text);
  process.exit(0);
};
const failed = (error) => {
  console.error(error.stack || error);
  process.exit(1);
};
const waitFor = (emitter, event, milliseconds) => new Promise((resolve, reject) => {
  const timer = setTimeout(() => reject(new Error(`no ${event} in ${milliseconds} ms`)), milliseconds);
  emitter.once(event, (...values) => {
    clearTimeout(timer);
    resolve(values[0]);
  });
});

const listen = (server, hook) => {
  server.listen(Number(port), address, hook);
  process.on('SIGTERM', () => process.exit(0));
};

// Asks with a line, until it is answered with the same line.
const ask = (socket, line) => new Promise((resolve, reject) => {
  let back = '';
  const onData = (data) => {
    back += data;
    if (!back.endsWith('\n')) return;
    finish();
    back === line ? resolve() : reject(new Error(`${back} came back for ${line}`));
  };
  const onClose = () => {
    finish();
    reject(new Error('closed instead of an answer'));
  };
  const finish = () => socket.off('data', onData).off('close', onClose);
  socket.on('data', onData).on('close', onClose);
  socket.write(line);
});

const talk = async (socket, number) => {
  for (let i = 0; i < number; i++) await ask(socket, `message ${i}\n`);
};

const connect = async () => {
  const socket = net.connect(Number(port), address);
  await waitFor(socket, 'connect', 5000);
  return socket;
};

const request = (agent, path, body) => new Promise((resolve, reject) => {
  const one = http.request({host: address, port, path, method: 'POST', agent}, (response) => {
    const parts = [];
    response.on('data', (part) => parts.push(part));
    response.on('end', () => resolve({body: Buffer.concat(parts), headers: response.headers, socket: one.socket}));
  });
  one.on('error', reject);
  one.end(body);
});

const parts = {
  // The server closes an idle connection; the client notices, and takes a new one for its next request.
  timeout: {
    server: () => {
      const server = http.createServer((incoming, response) => {
        response.setHeader('Connection', 'keep-alive');  // without a hint by which the client would close first
        incoming.pipe(response);
      });
      server.keepAliveTimeout = 100;
      listen(server);
    },
    client: async () => {
      const agent = new http.Agent({keepAlive: true, maxSockets: 1});
      for (let round = 0; round < 2; round++) {
        let socket = null;
        for (let i = 0; i < 300; i++) {
          const answer = await request(agent, '/', `request ${i}`);
          if (String(answer.body) !== `request ${i}`) throw new Error('another answer');
          if (socket && answer.socket !== socket) throw new Error('the connection did not stay');
          socket = answer.socket;
        }
        const hadError = await waitFor(socket, 'close', 5000);
        if (hadError) throw new Error('closed with an error');
      }
      done('closed twice after the timeout');
    },
  },

  // destroy() at one end of a quiet connection is seen as a close at the other.
  destroy: {
    server: () => listen(net.createServer((socket) => {
      let lines = 0;
      socket.on('data', (data) => {
        lines += String(data).split('\n').length - 1;
        socket.write(data);
        if (lines === 500) setTimeout(() => socket.destroy(), 20);
      });
      socket.on('error', () => {});
      socket.on('close', () => console.log(`closed after ${lines} lines`));
    })),
    client: async () => {
      const first = await connect();
      await talk(first, 400);
      first.destroy();
      const second = await connect();
      const closed = waitFor(second, 'close', 5000);
      const ended = waitFor(second, 'end', 5000);
      await talk(second, 500);
      await ended;
      if (await closed) throw new Error('closed with an error');
      done('both ends were seen');
    },
  },

  // destroy() while the other end has much to send: its writes fail, and it gets an error or a close.
  cut: {
    server: () => listen(net.createServer((socket) => {
      let received = 0;
      socket.on('data', (data) => {
        received += data.length;
        if (received > 8 << 20) socket.destroy();
      });
    })),
    client: async () => {
      const block = crypto.randomBytes(1 << 20);
      for (let i = 0; i < 4; i++) {
        const socket = await connect();
        socket.on('error', () => {});
        const closed = waitFor(socket, 'close', 5000);
        let sent = 0;
        const send = () => {
          while (!socket.destroyed && sent++ < 4096) if (!socket.write(block)) return;
        };
        socket.on('drain', send);
        send();
        await closed;
        if (sent < 4 || sent >= 4096) throw new Error(`${sent} blocks were taken`);
      }
      done('four were cut');
    },
  },

  // The primary accepts and passes connections on (SCM_RIGHTS); with NODE_CLUSTER_SCHED_POLICY=none, workers accept.
  cluster: {
    server: () => {
      if (cluster.isPrimary) {
        const workers = [cluster.fork(), cluster.fork()];
        let listening = 0;
        cluster.on('listening', () => ++listening === workers.length && console.log('all listen'));
        process.on('SIGTERM', () => {
          let left = workers.length;
          workers.forEach((worker) => worker.on('exit', () => --left === 0 && process.exit(0)).kill());
        });
      } else {
        const server = http.createServer((incoming, response) => {
          response.setHeader('x-worker', cluster.worker.id);
          incoming.pipe(response);
        });
        server.keepAliveTimeout = 5000;
        listen(server);
      }
    },
    client: async () => {
      const agents = Array.from({length: 8}, () => new http.Agent({keepAlive: true, maxSockets: 1}));
      const workers = new Set();
      await Promise.all(agents.map(async (agent, number) => {
        for (let i = 0; i < 150; i++) {
          const body = crypto.randomBytes(i === 149 ? 1 << 20 : 100 + number);
          const answer = await request(agent, `/${i}`, body);
          if (!answer.body.equals(body)) throw new Error(`another answer to ${i}`);
          workers.add(answer.headers['x-worker']);
        }
      }));
      done(`${workers.size} workers answered`);
    },
  },
};

Promise.resolve(parts[what][role]()).catch(failed);
