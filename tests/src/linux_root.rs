//! Root file systems for cells with Linux programs.

use crate::isola::{Isola, Outcome};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The commands of busybox that a root file system links.
const APPLETS: [&str; 13] =
    ["sh", "ls", "cat", "tr", "seq", "wc", "sleep", "grep", "sort", "ps", "dd", "awk", "find"];

/// A root file system in a folder: busybox, this host's C library, and what a test adds.
pub struct LinuxRoot {
    folder: TempDir,
}

impl LinuxRoot {
    /// Creates the file system.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Self { folder };
        for name in ["bin", "etc", "tmp"] {
            fs::create_dir_all(root.path(name)).unwrap();
        }
        fs::set_permissions(root.path("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(root.path("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        fs::copy("/bin/busybox", root.path("bin/busybox")).unwrap();
        for applet in APPLETS {
            symlink("busybox", root.path("bin").join(applet)).unwrap();
        }
        for library in ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"] {
            root.copy(library);
        }
        root
    }

    /// The path on this host of a file of the root file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    /// Copies a file of this host to the same absolute path.
    pub fn copy(&self, path: &str) {
        let to = self.path(path.trim_start_matches('/'));
        if !to.exists() {
            fs::create_dir_all(to.parent().expect("an absolute path has a folder")).unwrap();
            fs::copy(path, to).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }

    /// Copies a folder of this host to the same absolute path.
    pub fn copy_folder(&self, path: &str) {
        let to = self.path(path.trim_start_matches('/'));
        fs::create_dir_all(&to).unwrap();
        let mut command = Command::new("cp");
        let output = command.args(["-a", &format!("{path}/.")]).arg(&to).output().unwrap();
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Copies a program of this host, and the libraries that it is linked with.
    pub fn copy_program(&self, path: &str) {
        self.copy(path);
        let output = Command::new("ldd").arg(path).output().unwrap();
        for word in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            if word.starts_with('/') {
                self.copy(word);
            }
        }
    }

    /// Compiles a program of `tests/programs` into `/bin`.
    pub fn compile(&self, source: &str, name: &str, options: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(format!("{source}.c"));
        let mut command = Command::new("gcc");
        command
            .args(["-O1", "-pthread"])
            .args(options)
            .arg("-o")
            .arg(self.path("bin").join(name))
            .arg(source);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a program of `/bin` on this host; returns its output and its exit code.
    pub fn on_host(&self, name: &str) -> (String, Option<i32>) {
        let output = Command::new(self.path("bin").join(name)).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    }

    /// Makes a volume of this size, such as `48M`, of the file system.
    pub fn volume(&self, isola: &Isola, size: &str) -> LinuxVolume<'_> {
        let store = self.folder.path().join("volumes");
        let from = self.folder.path().join("root").display().to_string();
        let create = ["volume", "create", "root", "--size", size, "--from", &from];
        isola.run_with(&create, &[("ISOLA_VOLUMES", &store)]).ok();
        LinuxVolume { store, _root: self }
    }
}

impl Default for LinuxRoot {
    fn default() -> Self {
        Self::new()
    }
}

/// A volume with a root file system.
pub struct LinuxVolume<'a> {
    store: PathBuf,
    _root: &'a LinuxRoot,
}

impl LinuxVolume<'_> {
    /// Runs a command in a cell of its own, without network.
    pub fn run(&self, isola: &Isola, cores: &str, command: &[&str]) -> Outcome {
        self.run_with(isola, &["--cores", cores, "--network", "none"], command)
    }

    /// Runs a command in a cell of its own, with these options of `isola run`.
    pub fn run_with(&self, isola: &Isola, options: &[&str], command: &[&str]) -> Outcome {
        let run = [&["run", "--rm", "-v", "root:/:ro"], options, &["linux"], command].concat();
        isola.run_with(&run, &[("ISOLA_VOLUMES", &self.store)])
    }
}
