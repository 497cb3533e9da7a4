//! Images made of folders, archives and OCI images, as e2fsprogs reads them.

use flate2::Compression;
use flate2::write::GzEncoder;
use isola_need::{Need, need};
use isola_root_image::{BuildError, CommandLine, RootCache, RootImage, RootSource};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

/// A folder with a cache.
struct Scratch {
    folder: TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cache(&self) -> RootCache {
        RootCache::at(&self.path("roots"))
    }

    fn image(&self, source: &str) -> Result<RootImage, BuildError> {
        let source = source.replace("@", &self.folder.path().display().to_string());
        self.cache().image(&source.parse::<RootSource>().unwrap())
    }

    /// Makes an image, and checks the file system.
    fn checked(&self, source: &str) -> RootImage {
        let image = self.image(source).unwrap();
        check(&image.file);
        image
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Returns the message of the error for an archive.
    fn error(&self, archive: Vec<u8>) -> String {
        self.write("bad.tar", &archive);
        let message = self.image("@/bad.tar").unwrap_err().to_string();
        assert_eq!(fs::read_dir(self.path("roots")).unwrap().count(), 0, "an image that failed left a file");
        message
    }
}

/// Runs e2fsck, which must find nothing.
fn check(image: &Path) {
    let output = Command::new("e2fsck").args(["-f", "-n"]).arg(image).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Returns what a command of debugfs prints.
fn debugfs(image: &RootImage, request: &str) -> String {
    let output = Command::new("debugfs").arg("-R").arg(request).arg(&image.file).output().unwrap();
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the contents of a file.
fn contents(image: &RootImage, path: &str) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    debugfs(image, &format!("dump {path} {}", file.path().display()));
    fs::read(file.path()).unwrap()
}

/// Returns the names of a directory.
fn names(image: &RootImage, path: &str) -> Vec<String> {
    let listed = debugfs(image, &format!("ls -p {path}"));
    let names = listed.lines().filter_map(|line| line.split('/').nth(5));
    names.filter(|name| !matches!(*name, "." | ".." | "")).map(str::to_owned).collect()
}

/// An archive under construction.
struct Tar(Builder<Vec<u8>>);

impl Tar {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn entry(mut self, path: &str, entry_type: EntryType, target: &str, data: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        // Written here, because the crate refuses hostile paths.
        let name = &mut header.as_old_mut().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(entry_type);
        header.set_mode(0o755);
        header.set_uid(12);
        header.set_gid(70_000);
        header.set_mtime(1_700_000_000);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.0.append(&header, data).unwrap();
        self
    }

    fn file(self, path: &str, data: &[u8]) -> Self {
        self.entry(path, EntryType::Regular, "", data)
    }

    fn folder(self, path: &str) -> Self {
        self.entry(path, EntryType::Directory, "", b"")
    }

    fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, EntryType::Symlink, target, b"")
    }

    fn pax(mut self, records: &[(&str, &[u8])]) -> Self {
        self.0.append_pax_extensions(records.iter().copied()).unwrap();
        self
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 9)) as u8).collect()
}

#[test]
fn a_folder_becomes_a_file_system_with_all_its_files() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let scratch = Scratch::new();
    let long = "a".repeat(255);
    scratch.write("root/usr/bin/program", &data(300_001));
    scratch.write("root/empty", b"");
    scratch.write(&format!("root/{long}"), b"long");
    let mut sparse = vec![0; 5 << 20];
    sparse[(3 << 20) + 77] = 7;
    sparse.push(9);
    scratch.write("root/sparse", &sparse);
    for index in 0..1000 {
        scratch.write(&format!("root/many/file-{index:04}"), format!("{index}").as_bytes());
    }
    symlink("usr/bin", scratch.path("root/bin")).unwrap();
    symlink("x".repeat(200), scratch.path("root/far")).unwrap();
    fs::hard_link(scratch.path("root/usr/bin/program"), scratch.path("root/usr/bin/second")).unwrap();
    fs::set_permissions(scratch.path("root/usr/bin/program"), fs::Permissions::from_mode(0o4711)).unwrap();
    let image = scratch.checked("@/root");
    assert!(image.is_new);
    assert_eq!(contents(&image, "/usr/bin/second"), data(300_001));
    assert_eq!(contents(&image, "/sparse"), sparse);
    assert_eq!(contents(&image, "/empty"), b"");
    assert_eq!(contents(&image, &format!("/{long}")), b"long");
    assert_eq!(contents(&image, "/many/file-0777"), b"777");
    assert_eq!(names(&image, "/many").len(), 1000);
    let stat = debugfs(&image, "stat /usr/bin/program");
    assert!(
        stat.contains("Mode:  04711") && stat.contains("Links: 2") && stat.contains("User:     0"),
        "{stat}"
    );
    let modified = fs::metadata(scratch.path("root/usr/bin/program")).unwrap().mtime();
    assert!(stat.contains(&format!("mtime: {modified:#010x}:")), "{stat}");
    assert!(debugfs(&image, "stat /bin").contains("Fast link dest: \"usr/bin\""));
    assert!(debugfs(&image, "stat /far").contains("Type: symlink"));
    // Holes of the file system and of files occupy nothing on the host.
    assert!(fs::metadata(&image.file).unwrap().blocks() * 512 < 8 << 20);

    // The same contents have one image; changed ones another.
    assert!(!scratch.image("@/root").unwrap().is_new);
    scratch.write("root/many/file-0777", b"778");
    let changed = scratch.checked("@/root");
    assert!(changed.is_new && changed.file != image.file);
    assert_eq!(contents(&changed, "/many/file-0777"), b"778");
}

#[test]
fn an_archive_keeps_owners_devices_and_attributes() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let scratch = Scratch::new();
    let long = format!("{}/{}", "d".repeat(150), "f".repeat(200));
    let capability = b"\x01\x00\x00\x02\n\x04\x00\x00\n\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Char);
    header.set_path("dev/null").unwrap();
    header.set_mode(0o666);
    header.set_device_major(1).unwrap();
    header.set_device_minor(3).unwrap();
    for set in [Header::set_uid, Header::set_gid, Header::set_size, Header::set_mtime] {
        set(&mut header, 0);
    }
    header.set_cksum();
    let mut archive = Tar::new().folder("./").folder("./etc/").file("./etc/passwd", b"root:x:0:0\n");
    archive.0.append(&header, &b""[..]).unwrap();
    let records: [(&str, &[u8]); 4] = [
        ("SCHILY.xattr.security.capability", capability),
        ("SCHILY.xattr.user.note", b"a"),
        ("SCHILY.xattr.system.posix_acl_access", b"ignored"),
        ("mtime", b"1700000001.250000000"),
    ];
    let archive = archive
        .pax(&records)
        .file("bin/ping", b"ping")
        .pax(&[("path", long.as_bytes()), ("uid", b"100000")])
        .file("short", b"long")
        .entry("bin/ping2", EntryType::Link, "bin/ping", b"")
        .symlink("lib64", "/usr/lib")
        .file("lib64/x", b"within usr/lib")
        .entry("run/fifo", EntryType::Fifo, "", b"")
        .bytes();
    for (name, bytes) in [("plain", archive.clone()), ("gzip", gzip(&archive)), ("zstd", zstd(&archive))] {
        scratch.write(name, &bytes);
        let image = scratch.checked(&format!("@/{name}"));
        assert_eq!(contents(&image, "/etc/passwd"), b"root:x:0:0\n");
        assert_eq!(contents(&image, "/usr/lib/x"), b"within usr/lib");
        assert_eq!(contents(&image, &format!("/{long}")), b"long");
        assert!(debugfs(&image, &format!("stat /{long}")).contains("User: 100000"));
        let stat = debugfs(&image, "stat /bin/ping");
        assert!(stat.contains("User:    12   Group: 70000") && stat.contains("Links: 2"), "{stat}");
        assert!(stat.contains("mtime: 0x6553f101:3b9aca00"), "{stat}");
        assert!(
            stat.contains("user.note (1) = \"a\"") && stat.contains("security.capability (20)"),
            "{stat}"
        );
        assert!(!stat.contains("posix_acl"), "{stat}");
        assert!(debugfs(&image, "stat /dev/null").contains("Device major/minor number: 01:03"));
        assert!(debugfs(&image, "stat /run/fifo").contains("Type: FIFO"));
    }
    scratch.write("root.tar", &archive);
    if Command::new("xz").arg(scratch.path("root.tar")).status().is_ok_and(|status| status.success()) {
        assert_eq!(contents(&scratch.checked("@/root.tar.xz"), "/bin/ping2"), b"ping");
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    // Two members, as `cat a.gz b.gz` makes them.
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let member = |part: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(part).unwrap();
        encoder.finish().unwrap()
    };
    [member(first), member(second)].concat()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let skippable = [&0x184d_2a53_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
    let frame = |part: &[u8]| compress_to_vec(part, CompressionLevel::Fastest);
    [skippable.clone(), frame(first), skippable, frame(second)].concat()
}

#[test]
fn hostile_archives_are_refused_with_reasons() {
    let scratch = Scratch::new();
    let regular = EntryType::Regular;
    for (archive, words) in [
        (Tar::new().file("../../etc/passwd", b"x"), "contains `..`"),
        (Tar::new().file("a/../../b", b"x"), "contains `..`"),
        (Tar::new().entry("a", EntryType::Link, "../../etc/passwd", b""), "contains `..`"),
        (Tar::new().entry("a", EntryType::Link, "missing", b""), "has not before it"),
        (Tar::new().folder("d").entry("a", EntryType::Link, "d", b""), "hard link to a directory"),
        (Tar::new().file("a", b"x").file("a/b", b"x"), "a part of it is no directory"),
        (Tar::new().symlink("a", "b").symlink("b", "a").file("a/c", b"x"), "more than 40 symbolic links"),
        (Tar::new().symlink("a", ""), "its target"),
        (Tar::new().entry(".", regular, "", b"x"), "the root is no directory"),
        (Tar::new().entry("s", EntryType::GNUSparse, "", b""), "sparse"),
        (Tar::new().entry("s", EntryType::new(b'M'), "", b""), "type 'M' is unknown"),
        (Tar::new().pax(&[("GNU.sparse.major", b"1")]).file("s", b"x"), "sparse"),
        (Tar::new().pax(&[("size", b"9999999999")]).file("s", b"x"), "more than 8 GiB"),
        (Tar::new().pax(&[("path", &b"x".repeat(5000))]).file("s", b"x"), "4095 bytes"),
        (Tar::new().pax(&[("path", &b"x".repeat(256))]).file("s", b"x"), "255 bytes"),
        (Tar::new().pax(&[("path", b"a\0b")]).file("s", b"x"), "zero byte"),
        (Tar::new().pax(&[("uid", b"99999999999")]).file("s", b"x"), "number of an owner"),
        (Tar::new().pax(&[("SCHILY.xattr.user.a", &[1; 5000])]).file("s", b"x"), "extended attributes"),
        (Tar::new().entry("x", EntryType::XHeader, "", b"999 path=a\n"), "extended header is damaged"),
        (Tar::new().entry("x", EntryType::XHeader, "", b"1 path=a\n"), "extended header is damaged"),
        (Tar::new().entry("x", EntryType::XHeader, "", &[b'1'; 2 << 20]), "at most 1048576"),
    ] {
        let message = scratch.error(archive.bytes());
        assert!(message.contains(words), "{words}: {message}");
    }
    // A link of the archive leads to its own root, never to the host's.
    let archive =
        Tar::new().symlink("a", "../../../..").symlink("b", "/").file("a/one", b"1").file("b/two", b"2");
    scratch.write("inside.tar", &archive.bytes());
    let image = scratch.checked("@/inside.tar");
    assert_eq!((contents(&image, "/one"), contents(&image, "/two")), (b"1".to_vec(), b"2".to_vec()));
}

#[test]
fn absurd_sizes_and_damage_are_refused() {
    let scratch = Scratch::new();
    // An exabyte in a header of 512 bytes.
    let mut header = Header::new_gnu();
    header.set_path("huge").unwrap();
    for set in [Header::set_uid, Header::set_gid, Header::set_mtime] {
        set(&mut header, 0);
    }
    header.set_mode(0);
    header.set_size(1 << 60);
    header.set_cksum();
    let message = scratch.error(header.as_bytes().to_vec());
    assert!(message.contains("more than 15 GiB"), "{message}");
    header.set_size(1 << 30);
    header.set_cksum();
    let message = scratch.error(header.as_bytes().to_vec());
    assert!(message.contains("cannot be read"), "{message}");
    header.as_mut_bytes()[0] = b'x';
    let message = scratch.error(header.as_bytes().to_vec());
    assert!(message.contains("no tar archive"), "{message}");
    for bad in [Vec::new(), b"no archive at all".to_vec(), vec![7; 4096], b"\x1f\x8b\x08rubbish".to_vec()] {
        scratch.error(bad);
    }
    let whole = gzip(&Tar::new().file("a", &data(100_000)).bytes());
    let message = scratch.error(whole[..whole.len() / 2].to_vec());
    assert!(message.contains("cannot be read"), "{message}");
    assert!(matches!(scratch.image("@/missing"), Err(BuildError::NoSource(_))));
}

/// An OCI layout under construction.
struct Oci<'a> {
    scratch: &'a Scratch,
    name: &'a str,
    manifests: Vec<serde_json::Value>,
}

impl<'a> Oci<'a> {
    fn new(scratch: &'a Scratch, name: &'a str) -> Self {
        scratch.write(&format!("{name}/oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#);
        Self { scratch, name, manifests: Vec::new() }
    }

    fn blob(&self, bytes: &[u8], media_type: &str) -> serde_json::Value {
        let digest = digest(bytes);
        self.scratch.write(&format!("{}/blobs/sha256/{}", self.name, &digest[7..]), bytes);
        serde_json::json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
    }

    /// Adds an image of these archives, each as its layer has it.
    fn image(&mut self, tag: &str, architecture: &str, layers: &[(Vec<u8>, Vec<u8>)]) {
        let config = serde_json::json!({
            "os": "linux", "architecture": architecture,
            "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|(tar, _)| digest(tar)).collect::<Vec<_>>() },
            "config": {
                "Entrypoint": ["/bin/entry"], "Cmd": ["serve"], "Env": ["PATH=/bin", "A=1"], "WorkingDir": "/srv",
                "User": "web",
            },
        });
        let config = self.blob(config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json");
        let layers: Vec<_> = layers
            .iter()
            .map(|(_, layer)| self.blob(layer, "application/vnd.oci.image.layer.v1.tar+gzip"))
            .collect();
        let manifest = serde_json::json!({ "schemaVersion": 2, "config": config, "layers": layers });
        let mut entry =
            self.blob(manifest.to_string().as_bytes(), "application/vnd.oci.image.manifest.v1+json");
        entry["platform"] = serde_json::json!({ "os": "linux", "architecture": architecture });
        if !tag.is_empty() {
            entry["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": tag });
        }
        self.manifests.push(entry);
    }

    fn finish(&self) {
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": self.manifests });
        self.scratch.write(&format!("{}/index.json", self.name), index.to_string().as_bytes());
    }
}

fn digest(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// Three layers with whiteouts: plain, compressed by gzip, and by zstd.
fn layers() -> Vec<(Vec<u8>, Vec<u8>)> {
    let base = Tar::new()
        .folder("etc")
        .file("etc/old", b"old")
        .file("etc/kept", b"kept")
        .folder("opaque")
        .folder("opaque/deep")
        .file("opaque/deep/below", b"x")
        .folder("gone")
        .file("gone/x", b"x")
        .symlink("lib", "usr/lib")
        .folder("usr/lib")
        .bytes();
    let middle = Tar::new()
        .file("etc/.wh.old", b"")
        .file(".wh.gone", b"")
        .file("lib/added", b"through the link")
        .folder("opaque/deep")
        .file("opaque/deep/above", b"y")
        .file("opaque/.wh..wh..opq", b"")
        .file("opaque/.wh..wh.plnk", b"")
        .bytes();
    let top =
        Tar::new().file("etc/kept", b"replaced").file("gone", b"a file now").file(".wh.gone", b"").bytes();
    vec![(base.clone(), base), (middle.clone(), gzip(&middle)), (top.clone(), zstd(&top))]
}

fn check_layers(image: &RootImage) {
    check(&image.file);
    assert_eq!(names(image, "/etc"), ["kept"]);
    assert_eq!(contents(image, "/etc/kept"), b"replaced");
    assert_eq!(names(image, "/opaque"), ["deep"]);
    assert_eq!(names(image, "/opaque/deep"), ["above"]);
    assert_eq!(contents(image, "/usr/lib/added"), b"through the link");
    assert_eq!(contents(image, "/gone"), b"a file now");
}

#[test]
fn an_oci_image_is_its_layers_and_its_program() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let scratch = Scratch::new();
    let mut oci = Oci::new(&scratch, "layout");
    oci.image("1.0", "arm64", &[]);
    oci.image("1.0", "amd64", &layers());
    oci.image("other", "amd64", &layers()[..1]);
    oci.finish();
    let image = scratch.image("oci:@/layout:1.0").unwrap();
    check_layers(&image);
    let arguments = image.program.clone().with(CommandLine::default()).unwrap().arguments();
    assert_eq!(arguments.join(" "), "-e PATH=/bin -e A=1 -w /srv -u web -- /bin/entry serve");
    assert!(!scratch.image("oci:@/layout:1.0").unwrap().is_new);
    let message = scratch.image("oci:@/layout").unwrap_err().to_string();
    assert!(message.contains("no image \"latest\"; the layout has 1.0, 1.0, other"), "{message}");
    assert_eq!(names(&scratch.checked("oci:@/layout:other"), "/etc"), ["kept", "old"]);

    // The same in an archive, plain and compressed.
    let archive = || {
        let mut builder = Builder::new(Vec::new());
        builder.append_dir_all(".", scratch.path("layout")).unwrap();
        builder.into_inner().unwrap()
    };
    scratch.write("layout.tar", &archive());
    scratch.write("layout.tar.gz", &gzip(&archive()));
    for name in ["layout.tar", "layout.tar.gz"] {
        fs::remove_file(&image.file).unwrap();
        let image = scratch.image(&format!("oci:@/{name}:1.0")).unwrap();
        assert!(image.is_new);
        check_layers(&image);
    }
    assert_eq!(fs::read_dir(scratch.path("roots")).unwrap().count(), 4, "scratch files remain");
}

#[test]
fn an_index_of_platforms_leads_to_the_image_of_this_one() {
    let scratch = Scratch::new();
    let mut oci = Oci::new(&scratch, "layout");
    oci.image("", "arm64", &[]);
    oci.image("", "amd64", &layers()[..1]);
    let inner = serde_json::json!({ "schemaVersion": 2, "manifests": oci.manifests });
    let inner = oci.blob(inner.to_string().as_bytes(), "application/vnd.oci.image.index.v1+json");
    oci.manifests = vec![inner];
    oci.finish();
    assert!(scratch.image("oci:@/layout").unwrap().is_new);
    let only_arm: Vec<_> = {
        let mut oci = Oci::new(&scratch, "arm");
        oci.image("a", "arm64", &[]);
        oci.finish();
        oci.manifests
    };
    assert_eq!(only_arm.len(), 1);
    let message = scratch.image("oci:@/arm:a").unwrap_err().to_string();
    assert!(message.contains("for linux/arm64, and cells run linux/amd64"), "{message}");
}

#[test]
fn a_damaged_or_hostile_layout_is_refused() {
    let scratch = Scratch::new();
    let make = |layers: &[(Vec<u8>, Vec<u8>)]| {
        let _ = fs::remove_dir_all(scratch.path("layout"));
        let mut oci = Oci::new(&scratch, "layout");
        oci.image("1", "amd64", layers);
        oci.finish();
    };
    let refused = |words: &str| {
        let message = scratch.image("oci:@/layout:1").unwrap_err().to_string();
        assert!(message.contains(words), "{words}: {message}");
    };
    let (archive, other) = (Tar::new().file("a", b"one").bytes(), Tar::new().file("a", b"two").bytes());
    // A layer with other contents than its name.
    make(&[(archive.clone(), archive.clone())]);
    scratch.write(&format!("layout/blobs/sha256/{}", &digest(&archive)[7..]), &other);
    refused("the files of layer");
    let compressed = gzip(&archive);
    make(&[(archive.clone(), compressed.clone())]);
    // The same files, compressed in another way: only the digest of the blob differs.
    let mut changed = compressed.clone();
    changed[9] ^= 1;
    scratch.write(&format!("layout/blobs/sha256/{}", &digest(&compressed)[7..]), &changed);
    refused("has other contents than its name says");
    scratch.write(&format!("layout/blobs/sha256/{}", &digest(&compressed)[7..]), b"short");
    refused("has 5 bytes");
    fs::remove_file(scratch.path(&format!("layout/blobs/sha256/{}", &digest(&compressed)[7..]))).unwrap();
    refused("cannot be read");
    // The configuration lists other files.
    make(&[(other, archive.clone())]);
    refused("are not those of the configuration");
    // Digests that would be paths.
    for (bad, words) in [
        ("sha256:../../../etc/passwd", "does not have 64 digits"),
        ("md5:0123", "not one of SHA-256"),
        (&format!("sha256:{}", "A".repeat(64)), "does not have 64 digits"),
    ] {
        let index = serde_json::json!({ "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": bad, "size": 4,
            "annotations": { "org.opencontainers.image.ref.name": "1" },
        }] });
        scratch.write("layout/index.json", index.to_string().as_bytes());
        refused(words);
    }
    for (index, words) in [("{", "index.json is not valid"), ("{\"manifests\": null}", "no image \"1\"")] {
        scratch.write("layout/index.json", index.as_bytes());
        refused(words);
    }
    fs::remove_file(scratch.path("layout/index.json")).unwrap();
    refused("index.json cannot be read");
    assert!(scratch.image("oci:@/nothing:1").is_err());
}

#[test]
fn the_cache_is_shared_and_pruned() {
    let scratch = Scratch::new();
    scratch.write("root/file", &data(100_000));
    let images: Vec<RootImage> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| scratch.image("@/root").unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(images.iter().filter(|image| image.is_new).count(), 1);
    assert!(images.iter().all(|image| image.file == images[0].file));

    // A maker that was killed leaves an unlocked file, which the next one removes.
    let part = scratch.path(&format!("roots/{}.part", "0".repeat(64)));
    fs::write(&part, b"half").unwrap();
    assert!(!scratch.image("@/root").unwrap().is_new);
    assert!(!part.exists());
    // One that works has the lock.
    let file = fs::File::create(&part).unwrap();
    file.lock().unwrap();
    let cache = scratch.cache();
    assert!(cache.prune(|_| true).unwrap().is_empty(), "an image that was just used is removed");
    assert!(part.exists());
    drop(file);

    let listed = cache.list();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].source, scratch.path("root").display().to_string());
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let file = fs::File::options().write(true).open(&listed[0].file).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(old)).unwrap();
    assert!(cache.prune(|image| image.digest == "other").unwrap().is_empty());
    assert_eq!(cache.prune(|image| image.digest == listed[0].digest).unwrap().len(), 1);
    assert_eq!(fs::read_dir(scratch.path("roots")).unwrap().count(), 0);
}

/// Returns an archive with a byte of one of its headers changed, whose checksum is right nevertheless.
fn with_changed_header(mut archive: Vec<u8>, block: usize, at: usize, value: u8) -> Vec<u8> {
    let blocks = archive.len() / 512;
    let start = block % blocks * 512;
    archive[start + at] = value;
    let header = &mut archive[start..start + 512];
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    archive
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 200, ..Default::default() })]

    /// A damaged archive is either refused, or becomes a whole file system.
    #[test]
    fn changed_archives_never_become_damaged_file_systems(
        changes in proptest::collection::vec((0..40_usize, 0..512_usize, proptest::prelude::any::<u8>()), 1..4),
        compress in 0..3_usize,
    ) {
        let scratch = Scratch::new();
        let (base, top) = (layers().swap_remove(0).0, layers().swap_remove(2).0);
        let mut archive = [base, top].concat();
        for (block, at, value) in changes {
            archive = with_changed_header(archive, block, at, value);
        }
        let archive = match compress {
            0 => archive,
            1 => gzip(&archive),
            _ => zstd(&archive),
        };
        scratch.write("a.tar", &archive);
        if let Ok(image) = scratch.image("@/a.tar")
            && need(Need::E2fsprogs)
        {
            check(&image.file);
        }
    }
}
