// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// node_http.js server|client ADDRESS PORT: the server sends back what it is sent; the client compares.
'use strict';
const crypto = require('crypto');
const http = require('http');
const [role, address, port] = process.argv.slice(2);

if (role === 'server') {
  const server = http.createServer((request, response) => {
    response.setHeader('x-path', request.url);
    request.pipe(response);
  });
  server.listen(Number(port), address);
  process.on('SIGTERM', () => {
    server.close(() => process.exit(0));
    server.closeAllConnections();
  });
} else {
  const agent = new http.Agent({keepAlive: true, maxSockets: 4});
  const ask = (path, body) => new Promise((done, failed) => {
    const request = http.request({host: address, port, path, method: 'POST', agent}, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => {
        const same = Buffer.concat(parts).equals(body) && response.headers['x-path'] === path;
        same ? done() : failed(new Error(`another answer to ${path}`));
      });
    });
    request.on('error', failed);
    request.end(body);
  });
  const small = Array.from({length: 200}, (_, i) => ask(`/${i}`, Buffer.from(`request ${i}`)));
  Promise.all(small.concat(ask('/large', crypto.randomBytes(8 << 20)))).then((all) => {
    console.log(`${all.length} answers as they should be`);
    agent.destroy();
  }, (error) => {
    console.error(error.message);
    process.exit(1);
  });
}
