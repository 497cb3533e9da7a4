'use strict';
const assert = require('assert'), cp = require('child_process'), crypto = require('crypto'), fs = require('fs');
const http = require('http'), net = require('net'), os = require('os'), path = require('path'), zlib = require('zlib');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const until = (emitter, event) => new Promise(done => emitter.once(event, done));
async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'node'));
  const file = path.join(folder, 'file');
  fs.writeFileSync(file, 'text '.repeat(20000));
  // A server of a file, and clients.
  const server = http.createServer((request, response) => {
    if (request.method === 'POST') return request.pipe(response);
    fs.createReadStream(file).pipe(response);
  });
  await new Promise(done => server.listen(0, done));
  const port = server.address().port;
  const get = () => new Promise((done, fail) => http.get({ port }, answer => {
    let length = 0; answer.on('data', data => length += data.length); answer.on('end', () => done(length));
  }).on('error', fail));
  console.log('answers', (await Promise.all(Array.from({ length: 12 }, get))).join());
  const echoed = await new Promise(done => {
    const request = http.request({ port, method: 'POST' }, answer => { let text = ''; answer.on('data', data => text += data); answer.on('end', () => done(text)); });
    request.end('posted');
  });
  console.log(echoed);
  server.close();
  // Workers with shared memory.
  const shared = new Int32Array(new SharedArrayBuffer(8));
  const workers = [0, 1, 2].map(n => new Worker(__filename, { workerData: { shared, n } }));
  console.log('workers', (await Promise.all(workers.map(worker => until(worker, 'exit')))).join(), Atomics.load(shared, 0));
  // Children.
  console.log(cp.spawnSync('/bin/sh', ['-c', 'cat; exit 4'], { input: 'in' }).status, cp.execSync('echo sub').toString().trim());
  const child = cp.spawn('/bin/sleep', ['100']); child.kill('SIGTERM');
  console.log((await new Promise(done => child.on('exit', (code, signal) => done([code, signal])))).join());
  const forked = cp.fork(__filename, ['child']); forked.send({ n: 20 });
  console.log('forked', (await until(forked, 'message')).n); await until(forked, 'exit');
  // The thread pool: crypto, compression, files.
  const hash = crypto.pbkdf2Sync('p', 's', 1000, 16, 'sha256').toString('hex');
  const many = await Promise.all([1, 2, 3, 4, 5, 6].map(() => new Promise(done => crypto.pbkdf2('p', 's', 1000, 16, 'sha256', (e, key) => done(key.toString('hex'))))));
  console.log(hash, many.every(one => one === hash));
  console.log(zlib.gunzipSync(zlib.gzipSync(fs.readFileSync(file))).length);
  // Events of files.
  const watcher = fs.watch(folder); const changed = until(watcher, 'change');
  fs.writeFileSync(path.join(folder, 'new'), ''); console.log('watched', await changed); watcher.close();
  // Unix sockets.
  const local = net.createServer(socket => socket.end('local')); await new Promise(done => local.listen(path.join(folder, 'socket'), done));
  const socket = net.connect(path.join(folder, 'socket')); console.log((await until(socket, 'data')).toString()); local.close();
  // Signals, timers, errors.
  const usr1 = until(process, 'SIGHUP'); process.kill(process.pid, 'SIGHUP'); console.log(await usr1);
  const start = process.hrtime.bigint(); await new Promise(done => setTimeout(done, 30)); console.log(process.hrtime.bigint() - start >= 29000000n);
  try { fs.readFileSync('/none'); } catch (error) { console.log(error.code); }
  try { await fs.promises.readdir('/none'); } catch (error) { console.log(error.code); }
  // The collector.
  let kept = []; for (let i = 0; i < 300000; i++) { kept.push({ i, text: 'x' + i }); if (kept.length > 50000) kept = []; } console.log(kept.length);
  const memory = new WebAssembly.Memory({ initial: 1 }); memory.grow(10); console.log(memory.buffer.byteLength);
  fs.rmSync(folder, { recursive: true }); console.log(fs.existsSync(folder));
  process.exitCode = 6;
}
if (!isMainThread) { for (let i = 0; i < 1000; i++) Atomics.add(workerData.shared, 0, 1); }
else if (process.argv[2] === 'child') process.once('message', ({ n }) => { process.send({ n: n * 2 }); process.disconnect(); });
else main();
