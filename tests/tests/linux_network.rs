//! Servers of Debian, unmodified, in cells: their clients on the host, and in the cell.

use isola_need::{Need, need};
use isola_tests::isola::{Isola, Outcome};
use isola_tests::kv::Connection;
use isola_tests::service::published;
use isola_tests::wait;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A root file system for cells, with programs of this host and their libraries.
struct Root {
    folder: TempDir,
}

impl Root {
    fn new(programs: &[&str]) -> Self {
        let root = Self { folder: tempfile::tempdir().unwrap() };
        for name in ["bin", "etc", "tmp"] {
            fs::create_dir_all(root.path(name)).unwrap();
        }
        fs::write(root.path("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        fs::copy("/bin/busybox", root.path("bin/busybox")).unwrap();
        for applet in ["sh", "sleep", "echo"] {
            symlink("busybox", root.path("bin").join(applet)).unwrap();
        }
        for program in programs {
            root.copy(Path::new(program), Path::new("/bin").join(Path::new(program).file_name().unwrap()));
            let output = Command::new("ldd").arg(program).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
                root.copy(Path::new(library), library.into());
            }
        }
        root
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    fn copy(&self, from: &Path, to: PathBuf) {
        let to = self.folder.path().join("root").join(to.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    }

    /// Makes a volume of the file system. Returns the folder of volumes.
    fn volume(&self, isola: &Isola) -> PathBuf {
        let store = self.folder.path().join("volumes");
        let from = self.folder.path().join("root").display().to_string();
        let create = ["volume", "create", "root", "--size", "64M", "--from", &from];
        isola.run_with(&create, &[("ISOLA_VOLUMES", &store)]).ok();
        store
    }
}

/// Runs a program in a cell; returns the outcome of the command.
fn run(isola: &Isola, store: &Path, options: &[&str], command: &[&str]) -> Outcome {
    let run = ["run", "-v", "root:/:ro", "--memory", "128M"];
    isola.run_with(&[&run[..], options, &["linux", "--"], command].concat(), &[("ISOLA_VOLUMES", store)])
}

/// Starts a server in a cell of the background; returns the address of its published port.
fn serve(isola: &Isola, store: &Path, cores: &str, port: &str, command: &[&str]) -> SocketAddr {
    let options = ["-d", "--name", "server", "--cores", cores, "-p", port, "-o", "json"];
    let view = run(isola, store, &options, command).ok();
    published(&serde_json::from_str(&view).unwrap())
}

/// Connects to redis, once it answers.
fn redis(address: SocketAddr) -> Connection {
    wait::until("redis answers", || {
        let mut connection = Connection::open(address).ok()?;
        (connection.ask("PING").ok()?.trim_end() == "+PONG").then_some(connection)
    })
}

/// Sends a request, and reads an answer of this length.
fn ask(connection: &mut Connection, request: &[u8], expected: &str) {
    connection.send(request).unwrap();
    let mut answer = vec![0; expected.len()];
    connection.stream().read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), expected);
}

#[test]
fn redis_answers_clients_on_the_host_and_in_the_cell() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) || !need(Need::LinuxServers) {
        return;
    }
    let root = Root::new(&["/usr/bin/redis-server", "/usr/bin/redis-cli"]);
    let isola = Isola::up(&["--cores", "3"]);
    let store = root.volume(&isola);
    let server = ["redis-server", "--protected-mode", "no", "--save", "", "--port", "6379"];
    let address = serve(&isola, &store, "1", "6379", &server);
    let mut connection = redis(address);
    ask(&mut connection, b"PING\r\n", "+PONG\r\n");
    ask(&mut connection, b"SET key value\r\nGET key\r\n", "+OK\r\n$5\r\nvalue\r\n");
    // A value that is longer than all buffers, by a connection of its own.
    let value = vec![b'v'; 3_000_000];
    let mut second = redis(address);
    let head = format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${}\r\n", value.len());
    second.send(head.as_bytes()).unwrap();
    second.stream().write_all(&value).unwrap();
    ask(&mut second, b"\r\nSTRLEN big\r\n", "+OK\r\n:3000000\r\n");
    ask(&mut second, b"GET big\r\n", "$3000000\r\n");
    let mut received = vec![0; value.len()];
    second.stream().read_exact(&mut received).unwrap();
    assert!(received == value);
    isola.run(&["rm", "-f", "server"]).ok();
    // Server and client in one cell of two cores, over loopback.
    let script = "redis-server --save '' --bind 127.0.0.1 > /tmp/log & \
                  until redis-cli ping > /tmp/out 2>&1; do sleep 0.1; done; redis-cli set a b; redis-cli get a; \
                  redis-cli -h localhost get a; redis-cli shutdown nosave; wait; echo ended";
    let outcome = run(&isola, &store, &["--rm", "--cores", "2"], &["sh", "-c", script]);
    assert_eq!(outcome.out, "OK\nb\nb\nended\n", "{outcome:?}");
}

#[test]
fn sockets_do_over_loopback_what_they_do_on_linux() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/internet_sockets.c");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("internet_sockets");
    let compiled = Command::new("gcc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).status();
    assert!(compiled.unwrap().success());
    let expected = Command::new(&program).output().unwrap();
    assert_eq!(expected.status.code(), Some(3));
    let root = Root::new(&[program.to_str().unwrap()]);
    let isola = Isola::up(&["--cores", "3"]);
    let store = root.volume(&isola);
    for cores in ["1", "2"] {
        let outcome = run(&isola, &store, &["--rm", "--cores", cores], &["internet_sockets"]).ended_with(3);
        assert_eq!(outcome.out, String::from_utf8_lossy(&expected.stdout), "{cores} cores");
    }
}

#[test]
fn memcached_answers_from_all_its_threads() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) || !need(Need::LinuxServers) {
        return;
    }
    let root = Root::new(&["/usr/bin/memcached"]);
    let isola = Isola::up(&["--cores", "3"]);
    let store = root.volume(&isola);
    for cores in ["1", "2"] {
        let server = ["memcached", "-u", "root", "-m", "32", "-t", "2", "-l", "0.0.0.0"];
        let address = serve(&isola, &store, cores, "11211", &server);
        let mut connections: Vec<_> = (0..4).map(|_| Connection::establish(address)).collect();
        for (number, connection) in connections.iter_mut().enumerate() {
            connection.set(&format!("key{number}"), &[b'a' + number as u8; 5000]).unwrap();
        }
        for connection in &mut connections {
            for number in 0..4 {
                let value = connection.get(&format!("key{number}")).unwrap();
                assert_eq!(value, Some(vec![b'a' + number as u8; 5000]));
            }
        }
        isola.run(&["rm", "-f", "server"]).ok();
    }
}

/// The configuration of nginx: a master and two workers, which `kill` and `nginx -s` control.
const NGINX: &[u8] = b"user www-data;
worker_processes 2;
pid /run/nginx.pid;
error_log /var/log/nginx/error.log;
events { worker_connections 256; }
http {
    sendfile on;
    tcp_nopush on;
    access_log /var/log/nginx/access.log;
    server {
        listen 80;
        root /www;
        location = /version { return 200 before; }
    }
}
";

/// A connection to a web server, which stays open.
struct WebConnection(BufReader<TcpStream>);

impl WebConnection {
    fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(wait::TIMEOUT))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Requests a path; returns the status and the body. `more` are lines of the request's head.
    fn get(&mut self, path: &str, more: &str) -> std::io::Result<(u16, Vec<u8>)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n");
        self.0.get_mut().write_all(request.as_bytes())?;
        let (mut head, mut len) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                len = value.trim().parse().unwrap();
            }
            head.push(line);
        }
        let mut body = vec![0; len];
        self.0.read_exact(&mut body)?;
        Ok((head[0].split(' ').nth(1).unwrap().parse().unwrap(), body))
    }
}

#[test]
fn nginx_serves_files_and_obeys_signals() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) || !need(Need::LinuxServers) {
        return;
    }
    let root = Root::new(&["/usr/sbin/nginx"]);
    root.write("etc/passwd", b"root:x:0:0::/:/bin/sh\nwww-data:x:33:33::/:/bin/sh\n");
    root.write("etc/group", b"root:x:0:\nwww-data:x:33:\n");
    root.write("etc/nginx.conf", NGINX);
    for folder in ["run", "var/lib/nginx", "var/log/nginx"] {
        fs::create_dir_all(root.path(folder)).unwrap();
    }
    let page = vec![b'p'; 507];
    let long: Vec<u8> =
        (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    root.write("www/index.html", &page);
    root.write("www/long", &long);
    let isola = Isola::up(&["--cores", "3"]);
    let store = root.volume(&isola);
    let exec = |script: &str| isola.run(&["exec", "server", "sh", "-c", script]).ok();
    let server = ["nginx", "-c", "/etc/nginx.conf", "-g", "daemon off;"];
    let address = serve(&isola, &store, "2", "80", &server);
    wait::until("nginx answers", || WebConnection::open(address).ok()?.get("/", "").ok());
    let mut connections: Vec<_> = (0..4).map(|_| WebConnection::open(address).unwrap()).collect();
    for _ in 0..3 {
        for connection in &mut connections {
            assert_eq!(connection.get("/", "").unwrap(), (200, page.clone()));
            assert_eq!(connection.get("/version", "").unwrap(), (200, b"before".to_vec()));
            assert_eq!(connection.get("/absent", "").unwrap().0, 404);
            let part = connection.get("/long", "Range: bytes=1000001-1999999\r\n").unwrap();
            assert!(part.0 == 206 && part.1 == long[1_000_001..2_000_000]);
        }
    }
    assert!(connections[0].get("/long", "").unwrap().1 == long);
    // The titles and owners of master and workers.
    let workers = "for pid in 2 3; do tr -d '\\0' < /proc/$pid/cmdline; stat -c ' %U' /proc/$pid; done";
    assert_eq!(exec(workers), "nginx: worker process www-data\nnginx: worker process www-data\n");
    assert_eq!(exec("cat /proc/1/cmdline"), "nginx: master process nginx -c /etc/nginx.conf -g daemon off;");
    // A new configuration: idle connections of the old workers end, new ones get new workers.
    exec(
        "cp /etc/nginx.conf /tmp/new; sed -i s/before/after/ /etc/nginx.conf; nginx -c /etc/nginx.conf -s reload",
    );
    wait::until("the new configuration", || {
        let answer = WebConnection::open(address).ok()?.get("/version", "").ok()?;
        (answer.1 == b"after").then_some(())
    });
    wait::until("the old workers' end", || connections[0].get("/", "").is_err().then_some(()));
    assert_eq!(exec("cat /proc/2/cmdline 2> /dev/null || echo gone"), "gone\n");
    // The log begins anew.
    exec("mv /var/log/nginx/access.log /tmp/log; nginx -c /etc/nginx.conf -s reopen");
    wait::until("the new log", || {
        WebConnection::open(address).ok()?.get("/again", "").ok()?;
        exec("cat /var/log/nginx/access.log 2> /dev/null || true").contains("GET /again").then_some(())
    });
    // A quiet end of the master, and so of the cell.
    exec("kill -QUIT 1");
    let has_ended = || (isola.cell("server")["state"] != "running").then_some(());
    wait::until_or_report("the cell's end", has_ended, || {
        let connections = isola.run(&["inspect", "server", "--connections"]);
        let processes = "for pid in /proc/[0-9]*; do cat $pid/stat $pid/status; ls -l $pid/fd; done";
        format!("{connections:?}\n{:?}", isola.run(&["exec", "server", "sh", "-c", processes]))
    });
    let cell = isola.cell("server");
    assert_eq!(cell["exit_code"], 0, "{cell}");
}
