//! Root file systems of Linux cells, and volumes that Linux programs change, checked by e2fsprogs.

use isola_need::{LONG, Need, need};
use isola_tests::isola::{Isola, Outcome};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

/// A folder with a root file system in several forms, and with volumes.
struct Files {
    folder: TempDir,
}

impl Files {
    /// Makes a root file system of busybox; `None` if the host lacks a program.
    fn new() -> Option<Self> {
        if !need(Need::E2fsprogs) || !need(Need::Busybox) {
            return None;
        }
        let files = Self { folder: tempfile::tempdir().unwrap() };
        for name in ["bin", "etc", "tmp", "srv"] {
            fs::create_dir_all(files.path("root").join(name)).unwrap();
        }
        fs::write(files.path("root/etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n")
            .unwrap();
        fs::write(files.path("root/etc/group"), "root:x:0:\nweb:x:34:\nssl:x:101:web\n").unwrap();
        fs::copy("/bin/busybox", files.path("root/bin/busybox")).unwrap();
        for applet in
            ["sh", "cat", "id", "ls", "mkdir", "mv", "rm", "ln", "dd", "sync", "stat", "pwd", "df", "sleep"]
        {
            symlink("busybox", files.path("root/bin").join(applet)).unwrap();
        }
        Some(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Packs the root file system.
    fn archive(&self, name: &str, options: &str) {
        let mut tar = Command::new("tar");
        tar.arg("--owner=0")
            .arg("--group=0")
            .arg(options)
            .arg(self.path(name))
            .arg("-C")
            .arg(self.path("root"));
        assert!(tar.arg(".").status().unwrap().success());
    }

    /// Writes an OCI layout with an image of one layer.
    fn layout(&self) {
        self.archive("root.tar", "-cf");
        let blob = |bytes: &[u8], media_type: &str| {
            let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            let folder = self.path("layout/blobs/sha256");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(&digits), bytes).unwrap();
            serde_json::json!({ "mediaType": media_type, "digest": format!("sha256:{digits}"), "size": bytes.len() })
        };
        let layer = blob(&fs::read(self.path("root.tar")).unwrap(), "application/vnd.oci.image.layer.v1.tar");
        let config = serde_json::json!({
            "os": "linux", "architecture": "amd64",
            "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
            "config": {
                "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo image $MODE; id; pwd"],
                "Env": ["PATH=/bin", "MODE=slow"], "WorkingDir": "/srv", "User": "web",
            },
        });
        let config = blob(config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json");
        let manifest = serde_json::json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
        let mut manifest =
            blob(manifest.to_string().as_bytes(), "application/vnd.oci.image.manifest.v1+json");
        manifest["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": "1.0" });
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(self.path("layout/index.json"), index.to_string()).unwrap();
    }

    /// Runs `isola` with the volumes of this folder. A busy host makes the cell's watchdog print lines, which do not count.
    fn isola(&self, isola: &Isola, arguments: &[&str]) -> Outcome {
        let mut outcome = isola.run_with(arguments, &[("ISOLA_VOLUMES", &self.path("volumes"))]);
        outcome.out =
            outcome.out.split_inclusive('\n').filter(|line| !line.starts_with("watchdog:")).collect();
        outcome
    }

    /// Runs a program in a cell of its own.
    fn run(&self, isola: &Isola, root: &str, options: &[&str], command: &[&str]) -> Outcome {
        let run = ["run", "--rm", "--network", "none", "--rootfs", root];
        self.isola(isola, &[&run[..], options, &["--"], command].concat())
    }

    /// Runs e2fsck on a copy of a volume, after it has replayed the journal. It must find nothing.
    fn check(&self, volume: &str) {
        let copy = self.path("checked.img");
        fs::copy(self.path("volumes").join(format!("{volume}.img")), &copy).unwrap();
        let e2fsck = |options: &[&str]| Command::new("e2fsck").args(options).arg(&copy).output().unwrap();
        // Replays the journal, and releases files that were open without a name.
        e2fsck(&["-p"]);
        let output = e2fsck(&["-f", "-n"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn a_folder_an_archive_and_an_oci_image_are_root_file_systems() {
    let Some(files) = Files::new() else { return };
    files.archive("root.tar.gz", "-czf");
    files.layout();
    let isola = Isola::up(&["--cores", "2"]);
    let own = "echo root $MODE; id -u; pwd; echo x > /tmp/new; cat /tmp/new";
    for root in [files.text("root"), files.text("root.tar.gz")] {
        let outcome = files.run(&isola, &root, &["-e", "MODE=fast", "-w", "/etc"], &["sh", "-c", own]);
        assert_eq!(outcome.ok(), "root fast\n0\n/etc\nx\n", "{root}");
        // The change was in memory.
        files.run(&isola, &root, &[], &["cat", "/tmp/new"]).ended_with(1);
    }
    let image = format!("oci:{}:1.0", files.text("layout"));
    let outcome = files.run(&isola, &image, &[], &[]);
    assert_eq!(outcome.ok(), "image slow\nuid=33(web) gid=34(web) groups=101(ssl)\n/srv\n");
    let options = ["-e", "MODE=fast", "-w", "/", "--user", "0:ssl", "--entrypoint", "/bin/sh"];
    let outcome = files.run(&isola, &image, &options, &["-c", "echo own $MODE; id; pwd"]);
    assert_eq!(outcome.ok(), "own fast\nuid=0(root) gid=101(ssl)\n/\n");
    let outcome = files.run(&isola, &image, &["--user", "nobody"], &[]).ended_with(2);
    assert!(outcome.out.contains("/etc/passwd has no user nobody"), "{outcome:?}");
    let options = ["--tmpfs", "/run:size=64k,mode=750", "--entrypoint", ""];
    let script = "stat -c %a /run; dd if=/dev/zero of=/run/x bs=4k count=20 2>/dev/null; stat -c %s /run/x";
    let outcome =
        files.run(&isola, &image, &[&options[..], &["--user", "root"]].concat(), &["sh", "-c", script]);
    assert_eq!(outcome.ok(), "750\n65536\n");

    // Each was made once, and all can be removed.
    let listed = isola.json(&["rootfs", "ls"]);
    assert_eq!(listed.as_array().unwrap().len(), 3, "{listed}");
    let missing = files.run(&isola, "/nothing", &[], &["sh"]).ended_with(125);
    assert!(missing.err.contains("neither a folder nor a file"), "{missing:?}");
}

#[test]
fn a_volume_keeps_the_changes_of_programs() {
    let Some(files) = Files::new() else { return };
    let isola = Isola::up(&["--cores", "2"]);
    files.isola(&isola, &["volume", "create", "data", "--size", "32M"]).ok();
    let root = files.text("root");
    let run = |volume: &str, script: &str| {
        files.run(&isola, &root, &["-v", volume, "-w", "/data"], &["sh", "-c", script])
    };
    let change = "echo one > a; mkdir d; ln a d/b; ln -s a s; mv d e; echo two >> e/b; rm a; \
                  exec 3> gone; rm gone; echo x >&3; dd if=/dev/zero of=big bs=64k count=100 2>/dev/null; \
                  dd if=/dev/zero of=sparse bs=1 count=1 seek=1000000 2>/dev/null; ls";
    assert_eq!(run("data:/data", change).ok(), "big\ne\nlost+found\ns\nsparse\n");
    files.check("data");
    let outcome = run("data:/data:ro", "cat e/b; stat -c '%h %s' e/b sparse; echo x > new || echo refused");
    assert!(
        outcome.out.starts_with("one\ntwo\n1 8\n1 1000001\n") && outcome.out.ends_with("refused\n"),
        "{outcome:?}"
    );
    // A full volume is an error of the write, and all stays as it was.
    let outcome = run("data:/data", "dd if=/dev/zero of=full bs=64k count=1000; rm full; cat e/b");
    assert!(
        outcome.out.contains("No space left on device") && outcome.out.ends_with("one\ntwo\n"),
        "{outcome:?}"
    );
    files.check("data");
    // The host reads what the programs wrote.
    let image = files.path("volumes/data.img");
    let output = Command::new("debugfs").args(["-R", "cat /e/b"]).arg(image).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\ntwo\n");
}

#[test]
fn a_killed_cell_leaves_its_volume_whole() {
    let Some(files) = Files::new() else { return };
    let isola = Isola::up(&["--cores", "2"]);
    files.isola(&isola, &["volume", "create", "data", "--size", "32M"]).ok();
    let root = files.text("root");
    // A name that was synced stays. All other changes may be lost, but not in part.
    let script = "echo kept > kept; sync; echo ready; i=0; while true; do i=$((i + 1)); mkdir -p d$((i % 7)); \
                  echo $i > d$((i % 7))/f$i; dd if=/dev/zero of=data bs=4k count=$((i % 50 + 1)) 2>/dev/null; \
                  mv d$((i % 7))/f$i renamed$((i % 5)); ln -f renamed$((i % 5)) link$((i % 3)); \
                  rm -rf d$(((i + 3) % 7)); [ $((i % 4)) = 0 ] && sync; done";
    let rounds = if std::env::var_os(LONG).is_some() { 40 } else { 3 };
    for round in 0..rounds {
        let run = ["run", "-d", "--name", "writer", "--network", "none", "--rootfs", &root];
        let options = ["-v", "data:/data", "-w", "/data", "--", "sh", "-c", script];
        files.isola(&isola, &[&run[..], &options].concat()).ok();
        while !isola.run(&["logs", "writer"]).ok().contains("ready") {
            sleep(Duration::from_millis(20));
        }
        sleep(Duration::from_millis(fastrand::u64(0..1500)));
        files.isola(&isola, &["rm", "-f", "writer"]).ok();
        files.check("data");
        let read = files.run(&isola, &root, &["-v", "data:/data:ro"], &["cat", "/data/kept"]);
        assert_eq!(read.ok(), "kept\n", "round {round}");
    }
}
