//! Debian's packages, fetched with apt and unpacked into a folder; nothing is installed.

use super::kernel::Kernel;
use crate::error::BenchError;
use crate::{interrupt, program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The meta-package of the kernel in Debian's cloud images; it depends on the current version.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The other packages by name. The libraries of the services follow from their dependencies.
const OTHERS: [&str; 14] = [
    "busybox-static",
    "memcached",
    "nginx",
    "redis-tools",
    "redis-server",
    "util-linux",
    "iproute2",
    "libgcc-s1",
    "libgcrypt20",
    "libgpg-error0",
    "liblzma5",
    "libmd0",
    "libstdc++6",
    "zlib1g",
];

/// Unpacked packages.
#[derive(Clone, Debug)]
pub struct Packages {
    /// Their folder.
    root: PathBuf,
    /// The fetched versions, as `NAME VERSION`.
    versions: Vec<String>,
}

impl Packages {
    /// Fetches and unpacks packages that are missing in `cache`, with the kernel `kernel`.
    ///
    /// # Errors
    /// [`BenchError::Program`] with apt's message; [`BenchError::ProgramMissing`], [`BenchError::File`],
    /// [`BenchError::Interrupted`].
    pub fn fetch(cache: &Path, kernel: Kernel) -> Result<Self, BenchError> {
        let (root, list) = (cache.join("packages"), cache.join("packages.list"));
        // The list is written last, so an interrupted fetch starts again.
        if let Ok(text) = fs::read_to_string(&list) {
            let versions: Vec<String> = text.lines().map(str::to_owned).collect();
            // A list from before an addition to OTHERS is incomplete.
            if OTHERS.iter().all(|name| versions.iter().any(|version| is_of(version, name))) {
                return Ok(Self { root, versions });
            }
        }
        program::need(&[("apt-get", "apt"), ("dpkg-deb", "dpkg")])?;
        let archives = cache.join("archives");
        for folder in [&root, &archives] {
            if folder.exists() {
                fs::remove_dir_all(folder).map_err(BenchError::file(folder))?;
            }
            fs::create_dir_all(folder).map_err(BenchError::file(folder))?;
        }
        eprintln!("bench: fetching the Linux guest's packages with apt-get download");
        let of_kernel = kernel.apt_options(cache)?;
        let image = dependency(&of_kernel, KERNEL, "linux-image-")?;
        let download = |options: &[String], names: &[String]| {
            let mut download = Command::new("apt-get");
            download.current_dir(&archives).args(options).args(["download", "--quiet"]).args(names);
            program::run_in(&mut download)
        };
        download(&of_kernel, &[image])?;
        let mut names = OTHERS.map(str::to_owned).to_vec();
        names.extend(libraries_of("memcached")?);
        names.extend(libraries_of("nginx")?);
        names.extend(libraries_of("iproute2")?);
        names.extend(libraries_of("redis-tools")?);
        names.extend(libraries_of("libsystemd0")?);
        names.sort();
        names.dedup();
        download(&[], &names)?;
        let mut versions = Vec::new();
        let entries = fs::read_dir(&archives).map_err(BenchError::file(&archives))?;
        for archive in entries.flatten().map(|entry| entry.path()) {
            interrupt::check()?;
            program::run_in(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&root))?;
            let mut show = Command::new("dpkg-deb");
            show.arg("--show").arg("--showformat=${Package} ${Version}").arg(&archive);
            versions.push(program::run_in(&mut show)?);
        }
        fs::remove_dir_all(&archives).map_err(BenchError::file(&archives))?;
        versions.sort();
        fs::write(&list, versions.join("\n") + "\n").map_err(BenchError::file(&list))?;
        Ok(Self { root, versions })
    }

    /// Returns name and version of the package whose name begins with `start`.
    pub fn version_of(&self, start: &str) -> String {
        self.versions.iter().find(|version| version.starts_with(start)).cloned().unwrap_or_default()
    }

    /// Returns the first of `paths` that exists.
    ///
    /// # Errors
    /// [`BenchError::PackageContents`].
    pub fn find(&self, paths: &[&str]) -> Result<PathBuf, BenchError> {
        let mut found = paths.iter().map(|path| self.root.join(path)).filter(|path| path.is_file());
        found.next().ok_or_else(|| self.lacks(paths.first().unwrap_or(&"file")))
    }

    /// Returns the path of a shared library.
    ///
    /// # Errors
    /// [`BenchError::PackageContents`].
    pub fn library(&self, name: &str) -> Result<PathBuf, BenchError> {
        let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "lib64", "usr/lib64"];
        let paths = folders.map(|folder| format!("{folder}/{name}"));
        self.find(&paths.each_ref().map(String::as_str))
    }

    /// Returns the path of the kernel.
    ///
    /// # Errors
    /// [`BenchError::PackageContents`].
    pub fn kernel(&self) -> Result<PathBuf, BenchError> {
        let entries = fs::read_dir(self.root.join("boot")).into_iter().flatten().flatten();
        let mut kernels = entries.map(|entry| entry.path()).filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        });
        kernels.next().ok_or_else(|| self.lacks("boot/vmlinuz"))
    }

    /// Returns the file of a kernel module; `None` if it is built into the kernel.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub fn module(&self, name: &str) -> Result<Option<PathBuf>, BenchError> {
        let tops = ["lib/modules", "usr/lib/modules"].map(|folder| self.root.join(folder));
        let mut open: Vec<PathBuf> = tops.into_iter().filter(|folder| folder.is_dir()).collect();
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).map_err(BenchError::file(&folder))?.flatten() {
                let path = entry.path();
                if path.is_dir() {
                    open.push(path);
                } else if is_module(&entry.file_name().to_string_lossy(), name) {
                    return Ok(Some(path));
                }
            }
        }
        Ok(None)
    }

    fn lacks(&self, what: &str) -> BenchError {
        BenchError::PackageContents { path: self.root.clone(), item: what.to_owned() }
    }
}

/// Returns whether a file is the module with this name, compressed or not.
fn is_module(file: &str, name: &str) -> bool {
    file.strip_prefix(name).is_some_and(|end| end == ".ko" || end.starts_with(".ko."))
}

/// Returns whether `NAME VERSION` belongs to the package with this name.
fn is_of(version: &str, name: &str) -> bool {
    version.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '))
}

/// Returns the first dependency of a meta-package whose name begins with `start`.
fn dependency(options: &[String], package: &str, start: &str) -> Result<String, BenchError> {
    let mut arguments: Vec<&str> = options.iter().map(String::as_str).collect();
    arguments.extend(["show", "--no-all-versions", package]);
    let shown = program::run("apt-cache", &arguments)?;
    let mut names = dependencies(&shown).into_iter().filter(|name| name.starts_with(start));
    names.next().ok_or_else(|| BenchError::Program {
        line: format!("apt-cache show {package}"),
        output: format!(
            "no dependency begins with {start}; a Debian system is needed, and apt-get update may help"
        ),
    })
}

/// Returns the libraries that `package` depends on.
fn libraries_of(package: &str) -> Result<Vec<String>, BenchError> {
    let shown = program::run("apt-cache", &["show", "--no-all-versions", package])?;
    Ok(dependencies(&shown).into_iter().filter(|name| name.starts_with("lib")).collect())
}

/// Returns the names in the `Depends` field of apt-cache's output; the first of alternatives.
fn dependencies(shown: &str) -> Vec<String> {
    let field = shown.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
    let names = field.split(',').filter_map(|word| word.split_ascii_whitespace().next());
    names.map(|name| name.split(':').next().unwrap_or(name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_without_versions_and_alternatives() {
        let shown =
            "Package: memcached\nDepends: adduser, perl:any, libc6 (>= 2.34), libssl3 | libssl1.1 (>= 1)\n";
        assert_eq!(dependencies(shown), ["adduser", "perl", "libc6", "libssl3"]);
        assert_eq!(dependencies("Package: x\n"), [""; 0]);
    }

    #[test]
    fn modules_are_matched_by_their_whole_name() {
        assert!(is_module("virtio.ko", "virtio") && is_module("virtio.ko.xz", "virtio"));
        assert!(!is_module("virtio_net.ko", "virtio") && !is_module("virtio.kontext", "virtio"));
    }
}
