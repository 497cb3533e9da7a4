//! Linux programs that use services of native cells by unix sockets, and serve them.

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::linux_root::LinuxRoot;
use isola_tests::wait;

const NATIVE: [&str; 6] = ["--cores", "1", "--network", "none", "--memory", "16M"];
const LINUX: [&str; 6] = ["--cores", "1", "--network", "none", "--memory", "64M"];

fn waits_for(isola: &Isola, cell: &str, line: &str) {
    wait::until_true(&format!("{cell} prints {line:?}"), || isola.run(&["logs", cell]).ok().contains(line));
}

#[test]
fn programs_and_native_cells_use_services_of_each_other() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let root = LinuxRoot::new();
    root.compile("services", "services", &["-Wall", "-Wextra", "-Werror"]);
    let isola = Isola::up(&["--cores", "4", "--memory", "512M"]);
    let folder = root.path("").display().to_string();
    let store = root.path("../volumes");
    let linux = |options: &[&str], command: &[&str]| {
        let run = [&["run"], options, &LINUX, &["--rootfs", &folder, "--"], command].concat();
        isola.run_with(&run, &[("ISOLA_VOLUMES", &store)]).ok()
    };

    for (name, accepts) in [("kv", "web"), ("closed", "kv")] {
        let options = ["run", "-d", "--name", name, "--accept", accepts];
        isola.run(&[&options[..], &NATIVE, &["channels", "serve"]].concat()).ok();
        waits_for(&isola, name, "serving");
    }
    let paths =
        ["kv/echo", "kv/absent", "closed/echo", "nowhere/echo"].map(|name| format!("/run/isola/{name}"));
    let command = [&["services", "client"], &paths.each_ref().map(String::as_str)[..]].concat();
    let out = linux(&["--rm", "--name", "web"], &command);
    for line in [
        "peer: process 0, user 65534",
        "/run/isola/kv/absent: ECONNREFUSED",
        "/run/isola/closed/echo: EACCES",
        "/run/isola/nowhere/echo: ENOENT",
        "services: the client is done",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    // The service ends under a program that waits for it.
    linux(&["-d", "--name", "web"], &["services", "wait", "/run/isola/kv/slow"]);
    waits_for(&isola, "web", "services: waiting");
    isola.run(&["kill", "kv"]).ok();
    waits_for(&isola, "web", "services: recv is -1 (ECONNRESET)");
    assert_eq!(isola.wait_for_end("web")["exit_code"], 0);
    isola.run(&["rm", "-f", "web", "kv", "closed"]).ok();

    // The program serves, by a stream and by messages.
    let paths = ["/run/isola/self/stream", "/run/isola/server/messages"];
    linux(&["-d", "--name", "server", "--accept", "native"], &[&["services", "serve"], &paths[..]].concat());
    for kind in ["stream", "messages"] {
        waits_for(&isola, "server", &format!("/{kind}"));
        let run = [&["run", "--rm", "--name", "native"], &NATIVE[..], &["channels", "call"]].concat();
        let out = isola.run(&[&run[..], &[&format!("server/{kind}")]].concat()).ok();
        assert!(out.contains("the service is right"), "{out}");
    }
    waits_for(&isola, "server", "the server is done");
}
