//! The Linux guest for comparisons: Debian's cloud kernel, Debian's memcached or nginx, and a minimal initial file
//! system.
//!
//! | module | contents |
//! |---|---|
//! | this | the guest's files and command line |
//! | [`kernel`] | the kernel of the release, or of its backports |
//! | [`packages`] | Debian packages |
//! | [`libraries`] | the libraries that the programs need |
//! | [`initramfs`] | the format of the initial file system |

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
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The first process's message once the services are starting.
pub const READY: &str = "guest: services";

/// The prefix of its answer to `memory`: KiB in use.
pub const MEMORY_ANSWER: &str = "guest: memory";

/// The prefix of its answer to a change of cgroup settings: 0 after success.
pub const SET_ANSWER: &str = "guest: set";

/// The batch job's message at its end, followed by its time in us.
pub const BATCH_DONE: &str = "batch: us";

/// The program that measures the costs of system calls (`benches/linux/costs.c`).
pub const COSTS: &str = "costs";

/// The label of the growth of cgroups' values, followed by the numbers.
pub const MEASURED: &str = "guest: measured";

/// The kernel modules of the network device, in the order of loading (`benches/linux/init.sh`).
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

/// The kernel modules of the block device and of the network's traffic control, for the services of the group `grid`.
const GRID_MODULES: [&str; 3] = ["virtio_blk", "sch_htb", "cls_u32"];

/// The guest's folder of shared libraries. The loader's path is part of each program.
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
    /// Package and version of the kernel.
    pub kernel_version: String,
    /// Package and version of memcached.
    pub memcached_version: String,
    /// The initial file system with a web server.
    pub web_initramfs: PathBuf,
    /// The initial file system with all services and traffic control.
    pub grid_initramfs: PathBuf,
    /// Package and version of nginx.
    pub nginx_version: String,
    /// The initial file system with redis.
    pub redis_initramfs: PathBuf,
    /// Package and version of redis.
    pub redis_version: String,
    /// The folder with the root file system of cells: memcached, redis and nginx, with the settings that they have in the
    /// guest.
    pub cell_root: PathBuf,
}

/// Options that disable the kernel's hardening, because Isola has no counterpart of it.
const UNHARDENED: &str =
    "mitigations=off init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off apparmor=0 audit=0";

/// The page of the web servers, the same as in Isola's image.
pub const PAGE: &[u8] = include_bytes!("../../../apps/web/site/index.html");

/// The services of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Services {
    /// memcached, and the echo server.
    Usual,
    /// nginx.
    Web,
    /// The answering end of NetPIPE.
    Netpipe,
    /// The echo server for short connections.
    Short,
    /// memcached, and cgroups for it and for a batch job.
    Colocation,
    /// None at first: tenants, which are started by commands.
    Grid,
    /// redis, without other programs.
    Redis,
}

impl Services {
    /// Returns the name on the kernel's command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Web => "web",
            Self::Netpipe => "netpipe",
            Self::Short => "short",
            Self::Colocation => "colocation",
            Self::Grid => "grid",
            Self::Redis => "redis",
        }
    }
}

impl LinuxGuest {
    /// Fetches packages that are missing in `cache`, and assembles the guest there with `programs`, the benchmarks'
    /// own.
    ///
    /// # Errors
    /// As [`Packages::fetch`]; [`BenchError::PackageContents`], [`BenchError::File`].
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
        let grid_initramfs = write("initramfs-grid", Services::Grid)?;
        let redis_initramfs = write("initramfs-redis", Services::Redis)?;
        let cell_root = cache.join("cell-root");
        make_cell_root(&packages, &cell_root)?;
        Ok(Self {
            kernel: packages.kernel()?,
            initramfs,
            kernel_version: packages.version_of("linux-image"),
            memcached_version: packages.version_of("memcached"),
            web_initramfs,
            grid_initramfs,
            nginx_version: packages.version_of("nginx"),
            redis_initramfs,
            redis_version: packages.version_of("redis-server"),
            cell_root,
        })
    }

    /// Returns the initial file system with `services`.
    pub fn initramfs_of(&self, services: Services) -> &Path {
        match services {
            Services::Web => &self.web_initramfs,
            Services::Grid => &self.grid_initramfs,
            Services::Redis => &self.redis_initramfs,
            Services::Usual | Services::Netpipe | Services::Short | Services::Colocation => &self.initramfs,
        }
    }

    /// Returns the kernel's command line for `cores` processors: quiet, with a trusted clock and without hardening.
    pub fn command_line(&self, cores: u32, services: Services) -> String {
        format!(
            "console=ttyS0 quiet {UNHARDENED} tsc=reliable clocksource=tsc random.trust_cpu=on panic=-1 \
             guest_address={GUEST_NETWORK} memcached_threads={cores} guest_services={}",
            services.name()
        )
    }
}

/// Returns the initial file system.
fn file_system(packages: &Packages, programs: &[PathBuf], services: Services) -> Result<Vec<u8>, BenchError> {
    let read = |path: &Path| fs::read(path).map_err(BenchError::file(path));
    let mut system = Initramfs::default();
    for folder in ["bin", "dev", "etc", "lib", "lib/x86_64-linux-gnu", "lib64", "modules", "proc", "sys"] {
        system.folder(folder);
    }
    system.console("dev/console");
    system.file("init", Mode::Program, include_bytes!("../../linux/init.sh"));
    // memcached looks up the user of its option `-u`.
    system.file("etc/passwd", Mode::Data, b"root:x:0:0::/:/bin/sh\n");
    system.file("bin/busybox", Mode::Program, &read(&packages.find(&["bin/busybox", "usr/bin/busybox"])?)?);
    let is_redis = services == Services::Redis;
    let has_nginx = matches!(services, Services::Web | Services::Grid);
    let programs = if is_redis { &[] } else { programs };
    let ours: Vec<Vec<u8>> = programs.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let of_debian = [
        ("bin/memcached", !is_redis, &["usr/bin/memcached"][..]),
        ("bin/chrt", !is_redis, &["usr/bin/chrt"]),
        ("bin/nginx", has_nginx, &["usr/sbin/nginx"]),
        ("bin/tc", services == Services::Grid, &["sbin/tc", "usr/sbin/tc"]),
        ("bin/redis-server", is_redis, &["usr/bin/redis-server"]),
    ];
    let of_debian: Vec<(&str, Vec<u8>)> = of_debian
        .into_iter()
        .filter(|(_, is_needed, _)| *is_needed)
        .map(|(name, _, paths)| Ok((name, read(&packages.find(paths)?)?)))
        .collect::<Result<_, BenchError>>()?;
    let all: Vec<&[u8]> =
        ours.iter().chain(of_debian.iter().map(|(_, bytes)| bytes)).map(Vec::as_slice).collect();
    for library in libraries::closure(&all, |name| packages.library(name))? {
        system.file(&library_path(&library.name), Mode::Program, &library.bytes);
    }
    for (name, bytes) in &of_debian {
        system.file(name, Mode::Program, bytes);
    }
    if has_nginx {
        for folder in NGINX_FOLDERS {
            system.folder(folder);
        }
        system.file("etc/group", Mode::Data, b"root:x:0:\n");
        system.file("etc/nginx.conf", Mode::Data, include_bytes!("../../linux/nginx.conf"));
        system.file("www/index.html", Mode::Data, PAGE);
    }
    if services == Services::Grid {
        system.folder("data");
        for (name, len) in GRID_FILES {
            system.file(&format!("www/{name}"), Mode::Data, &grid_file(len));
        }
    }
    for (path, bytes) in programs.iter().zip(&ours) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        system.file(&format!("bin/{name}"), Mode::Program, bytes);
    }
    let more: &[&str] = if services == Services::Grid { &GRID_MODULES } else { &[] };
    for module in MODULES.iter().chain(more) {
        // A module without a file is built into the kernel.
        if let Some(path) = packages.module(module)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            system.file(&format!("modules/{name}"), Mode::Data, &read(&path)?);
        }
    }
    Ok(system.finish())
}

/// Returns the path of a shared library, or of the program loader.
fn library_path(name: &str) -> String {
    if name == "ld-linux-x86-64.so.2" { LOADER.to_owned() } else { format!("{LIBRARY_FOLDER}/{name}") }
}

/// Makes the root file system of cells in `folder`.
fn make_cell_root(packages: &Packages, folder: &Path) -> Result<(), BenchError> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(BenchError::file(folder))?;
    }
    let write = |name: &str, mode: u32, bytes: &[u8]| {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        let written = fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, bytes))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
        written.map_err(BenchError::file(&path))
    };
    let read = |path: &Path| fs::read(path).map_err(BenchError::file(path));
    let mut programs = Vec::new();
    for (name, path) in [
        ("bin/memcached", "usr/bin/memcached"),
        ("bin/redis-server", "usr/bin/redis-server"),
        ("bin/nginx", "usr/sbin/nginx"),
    ] {
        let bytes = read(&packages.find(&[path])?)?;
        write(name, 0o755, &bytes)?;
        programs.push(bytes);
    }
    let programs: Vec<&[u8]> = programs.iter().map(Vec::as_slice).collect();
    for library in libraries::closure(&programs, |name| packages.library(name))? {
        write(&library_path(&library.name), 0o755, &library.bytes)?;
    }
    for name in NGINX_FOLDERS {
        let path = folder.join(name);
        fs::create_dir_all(&path).map_err(BenchError::file(&path))?;
    }
    write("etc/passwd", 0o644, b"root:x:0:0::/:/bin/sh\n")?;
    write("etc/group", 0o644, b"root:x:0:\n")?;
    write("etc/nginx.conf", 0o644, include_bytes!("../../linux/nginx.conf"))?;
    write("www/index.html", 0o644, PAGE)
}

/// The folders that Debian's nginx expects or writes to, and that of its page.
const NGINX_FOLDERS: [&str; 7] =
    ["run", "var", "var/lib", "var/lib/nginx", "var/log", "var/log/nginx", "www"];

/// The files of the web servers in the group `grid`, the same as in Isola's image `tenants`: names and lengths.
pub const GRID_FILES: [(&str, usize); 4] =
    [("4m", 4 << 20), ("1m", 1_000_000), ("32k", 32 << 10), ("507", 507)];

/// Returns the content of a file of [`GRID_FILES`].
pub fn grid_file(len: usize) -> Vec<u8> {
    (0..len).map(|position| b'a' + (position % 26) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_loads_the_modules_and_prints_the_expected_messages() {
        let script = include_str!("../../linux/init.sh");
        assert!(script.contains(&format!("for module in {}; do", MODULES.join(" "))));
        assert!(script.contains(&format!("echo '{READY}'")) && script.contains(MEMORY_ANSWER));
        assert!(script.contains(SET_ANSWER) && include_str!("../bin/linux-batch.rs").contains(BATCH_DONE));
        for variable in ["$guest_address", "$memcached_threads", "$guest_services"] {
            assert!(script.contains(variable));
        }
        for services in [
            Services::Usual,
            Services::Web,
            Services::Netpipe,
            Services::Short,
            Services::Colocation,
            Services::Grid,
            Services::Redis,
        ] {
            assert!(script.contains(&format!("    {})", services.name())));
        }
        assert!(script.contains(&format!("for module in {}; do", GRID_MODULES.join(" "))));
        assert!(include_str!("../bin/linux-tenants.rs").contains(MEASURED));
    }
}
