// A PouchDB in memory, for the tests. `node peer.js replicator` does what its standard input says, a JSON object per
// line, and prints what came of it, also a line each. `node peer.js server` is a CouchDB-like server, and prints its
// port. Both end with their standard input. NODE_PATH says where the packages are.
'use strict';

const PouchDB = require('pouchdb-core')
  .plugin(require('pouchdb-adapter-memory'))
  .plugin(require('pouchdb-adapter-http'))
  .plugin(require('pouchdb-replication'));

const say = (what) => process.stdout.write(JSON.stringify(what) + '\n');
const failure = (error) => ({ error: String(error.name || error), reason: String(error.reason || error.message || '') });

function replicator() {
  const db = new PouchDB('peer', { adapter: 'memory' });
  const options = { batch_size: 10, heartbeat: 1000, back_off_function: () => 50 };
  const live = [];

  const directions = {
    pull: (url, more) => db.replicate.from(url, { ...options, ...more }),
    push: (url, more) => db.replicate.to(url, { ...options, ...more }),
  };

  const commands = {
    async once({ direction, url }) {
      const done = await directions[direction](url, {});
      return { read: done.docs_read, written: done.docs_written, failed: done.doc_write_failures };
    },
    async live({ direction, url }) {
      live.push(directions[direction](url, { live: true, retry: true }));
      return {};
    },
    async stop() {
      const ended = live.map((one) => new Promise((resolve) => one.on('complete', resolve).on('error', resolve)));
      live.forEach((one) => one.cancel());
      await Promise.all(ended);
      return {};
    },
    async write({ docs }) {
      return db.bulkDocs(docs, { new_edits: false });
    },
    async edit({ doc }) {
      return db.put(doc);
    },
    async docs() {
      const all = await db.allDocs({ include_docs: true });
      return all.rows.map((row) => row.doc);
    },
  };

  require('readline').createInterface({ input: process.stdin })
    .on('line', (line) => {
      const command = JSON.parse(line);
      commands[command.do](command).then(say, (error) => say(failure(error)));
    })
    .on('close', () => process.exit(0));
}

function server() {
  const app = require('express')();
  const couch = require('express-pouchdb');
  const Memory = PouchDB.defaults({ adapter: 'memory' });
  app.use('/', couch(Memory, { mode: 'minimumForPouchDB', inMemoryConfig: true, logPath: '/dev/null' }));
  const listener = app.listen(0, '127.0.0.1', () => say(listener.address().port));
  process.stdin.resume().on('end', () => process.exit(0));
}

({ replicator, server })[process.argv[2]]();
