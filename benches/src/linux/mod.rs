//! The Linux guest that Isola is compared with: Debian's cloud kernel, Debian's memcached, and an initial file system
//! with nothing else in it that is not needed.
//!
//! | module | what |
//! |---|---|
//! | this | what the guest boots |
//! | [`kernel`] | the kernel of the release, or of its backports |
//! | [`packages`] | fetching what is in it |
//! | [`libraries`] | which libraries its programs need |
//! | [`initramfs`] | the initial file system as bytes |

pub mod initramfs;
pub mod kernel;
pub mod libraries;
pub mod packages;

use crate::error::BenchError;
use crate::network::GUEST_NETWORK;
use initramfs::{Initramfs, Mode};
use kernel::Kernel;
use packages::Packages;
use std::fs;
use std::path::{Path, PathBuf};

/// What its first process says when its services are on their way.
pub const READY: &str = "guest: services";

/// What it answers when it is asked for its memory: KiB in use.
pub const MEMORY_ANSWER: &str = "guest: memory";

/// What it answers when its cgroups were given something: 0 where that could be done.
pub const SET_ANSWER: &str = "guest: set";

/// What its batch job says when it is done: how many us it took.
pub const BATCH_DONE: &str = "batch: us";

/// Kernel modules of the network device, in the order in which they are loaded (`benches/linux/init.sh`).
const MODULES: [&str; 8] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
];

/// Where a program's libraries are in the guest. The loader's path is part of each program.
const LIBRARY_FOLDER: &str = "lib/x86_64-linux-gnu";

/// The program loader.
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// A Linux guest, ready to boot.
#[derive(Clone, Debug)]
pub struct LinuxGuest {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial file system.
    pub initramfs: PathBuf,
    /// Which kernel that is: package and version.
    pub kernel_version: String,
    /// Which memcached: package and version.
    pub memcached_version: String,
    /// The initial file system that has a web server in it besides.
    pub web_initramfs: PathBuf,
    /// Which nginx: package and version.
    pub nginx_version: String,
}

/// What Debian's kernel does for the sake of security alone, switched off: Isola's does none of it.
const UNHARDENED: &str =
    "mitigations=off init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off apparmor=0 audit=0";

/// The page that the web servers have: that which is in Isola's image.
pub const PAGE: &[u8] = include_bytes!("../../../apps/web/site/index.html");

/// Which services the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Services {
    /// memcached, and the echo server.
    Usual,
    /// nginx.
    Web,
    /// What answers messages of all sizes.
    Netpipe,
    /// The echo server for short connections.
    Short,
    /// memcached, and cgroups for it and for a batch job.
    Colocation,
}

impl Services {
    /// Its name on the kernel's command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Web => "web",
            Self::Netpipe => "netpipe",
            Self::Short => "short",
            Self::Colocation => "colocation",
        }
    }
}

impl LinuxGuest {
    /// Fetches what is not in `cache` yet, and puts the guest together there. `programs` are
    /// those of ours that run there.
    ///
    /// # Errors
    /// What fetching says, or what is missing in a package.
    pub fn prepare(cache: &Path, kernel: Kernel, programs: &[PathBuf]) -> Result<Self, BenchError> {
        let packages = Packages::fetch(cache, kernel)?;
        let write = |name: &str, services| {
            let path = cache.join(name);
            let bytes = file_system(&packages, programs, services)?;
            fs::write(&path, bytes).map_err(BenchError::file(&path))?;
            Ok::<_, BenchError>(path)
        };
        let (initramfs, web_initramfs) =
            (write("initramfs", Services::Usual)?, write("initramfs-web", Services::Web)?);
        Ok(Self {
            kernel: packages.kernel()?,
            initramfs,
            kernel_version: packages.version_of("linux-image"),
            memcached_version: packages.version_of("memcached"),
            web_initramfs,
            nginx_version: packages.version_of("nginx"),
        })
    }

    /// The kernel's command line with `cores` processors: quiet, and tuned as for a guest whose clock and neighbours
    /// can be trusted.
    pub fn command_line(&self, cores: u32, services: Services) -> String {
        format!(
            "console=ttyS0 quiet {UNHARDENED} tsc=reliable clocksource=tsc random.trust_cpu=on panic=-1 \
             guest_address={GUEST_NETWORK} memcached_threads={cores} guest_services={}",
            services.name()
        )
    }
}

/// The initial file system.
fn file_system(packages: &Packages, programs: &[PathBuf], services: Services) -> Result<Vec<u8>, BenchError> {
    let read = |path: &Path| fs::read(path).map_err(BenchError::file(path));
    let mut system = Initramfs::default();
    for folder in ["bin", "dev", "etc", "lib", "lib/x86_64-linux-gnu", "lib64", "modules", "proc", "sys"] {
        system.folder(folder);
    }
    system.console("dev/console");
    system.file("init", Mode::Program, include_bytes!("../../linux/init.sh"));
    // memcached wants to know the user that it is told to be.
    system.file("etc/passwd", Mode::Data, b"root:x:0:0::/:/bin/sh\n");
    system.file("bin/busybox", Mode::Program, &read(&packages.find(&["bin/busybox", "usr/bin/busybox"])?)?);
    let memcached = read(&packages.find(&["usr/bin/memcached"])?)?;
    let chrt = read(&packages.find(&["usr/bin/chrt"])?)?;
    let ours: Vec<Vec<u8>> = programs.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let nginx = match services {
        Services::Usual | Services::Netpipe | Services::Short | Services::Colocation => None,
        Services::Web => Some(read(&packages.find(&["usr/sbin/nginx"])?)?),
    };
    let all: Vec<&[u8]> = ours.iter().chain([&memcached, &chrt]).chain(&nginx).map(Vec::as_slice).collect();
    for library in libraries::closure(&all, |name| packages.library(name))? {
        let place = match library.name.as_str() {
            "ld-linux-x86-64.so.2" => LOADER.to_owned(),
            name => format!("{LIBRARY_FOLDER}/{name}"),
        };
        system.file(&place, Mode::Program, &library.bytes);
    }
    system.file("bin/memcached", Mode::Program, &memcached);
    system.file("bin/chrt", Mode::Program, &chrt);
    if let Some(nginx) = nginx {
        // Where Debian's looks for its files, and makes its own.
        for folder in ["run", "var", "var/lib", "var/lib/nginx", "var/log", "var/log/nginx", "www"] {
            system.folder(folder);
        }
        system.file("etc/group", Mode::Data, b"root:x:0:\n");
        system.file("etc/nginx.conf", Mode::Data, include_bytes!("../../linux/nginx.conf"));
        system.file("www/index.html", Mode::Data, PAGE);
        system.file("bin/nginx", Mode::Program, &nginx);
    }
    for (path, bytes) in programs.iter().zip(&ours) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        system.file(&format!("bin/{name}"), Mode::Program, bytes);
    }
    for module in MODULES {
        // What is built into the kernel has no file.
        if let Some(path) = packages.module(module)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            system.file(&format!("modules/{name}"), Mode::Data, &read(&path)?);
        }
    }
    Ok(system.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_loads_the_modules_that_are_there() {
        let script = include_str!("../../linux/init.sh");
        assert!(script.contains(&format!("for module in {}; do", MODULES.join(" "))));
        assert!(script.contains(&format!("echo '{READY}'")) && script.contains(MEMORY_ANSWER));
        assert!(script.contains(SET_ANSWER) && include_str!("../bin/linux-batch.rs").contains(BATCH_DONE));
        for variable in ["$guest_address", "$memcached_threads", "$guest_services"] {
            assert!(script.contains(variable));
        }
        for services in
            [Services::Usual, Services::Web, Services::Netpipe, Services::Short, Services::Colocation]
        {
            assert!(script.contains(&format!("    {})", services.name())));
        }
    }
}
