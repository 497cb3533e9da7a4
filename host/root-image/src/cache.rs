//! The images of root file systems: each is made once for the same contents.
//!
//! ```text
//! $ISOLA_STATE/roots, or $XDG_CACHE_HOME/isola/roots, or ~/.cache/isola/roots        0700
//!   DIGEST.img        the image; it exists only when it is complete
//!   DIGEST.json       its source, and the configuration of its program
//!   DIGEST.part       an image in the making, locked by its maker
//! ```
//!
//! The digest is that of an archive, of the manifest of an OCI image, or of the attributes of a folder's files. A process
//! that wants an image that another one makes waits for the lock. The lock of a maker that was killed is free: the next
//! command removes its file.
//!
//! An image is valid if the format of images is the same: the name's first digits are those of [`FORMAT`] and the source.

use crate::archive::read_archive;
use crate::config::ProgramConfig;
use crate::ext4::ImageWriter;
use crate::folder::Folder;
use crate::oci::OciImage;
use crate::tree::{Tree, Whiteouts};
use crate::{BuildError, RootSource};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::env;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions, TryLockError};
use std::io::{self, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The version of the images: another one makes all images anew.
const FORMAT: &[u8] = b"isola root image 1";
/// The time for which an image that was just used stays, so that its cell can start.
const JUST_USED: Duration = Duration::from_secs(60);

/// The folder of images.
#[derive(Clone, Debug)]
pub struct RootCache {
    folder: PathBuf,
}

/// An image to run.
#[derive(Clone, Debug)]
pub struct RootImage {
    /// Its file.
    pub file: PathBuf,
    /// The configuration of its program, of an OCI image.
    pub program: ProgramConfig,
    /// Whether this call has made it.
    pub is_new: bool,
}

/// An image in the folder.
#[derive(Clone, Debug)]
pub struct CachedImage {
    /// Its digest, in hexadecimal digits.
    pub digest: String,
    /// Its file.
    pub file: PathBuf,
    /// The source that it was made of.
    pub source: String,
    /// The bytes that its file occupies.
    pub used_bytes: u64,
    /// The time since its latest use.
    pub unused: Duration,
}

/// The record beside an image.
#[derive(Serialize, Deserialize)]
struct Record {
    source: String,
    program: ProgramConfig,
}

/// A source that was found, with its digest.
enum FoundSource {
    Folder(Folder),
    Archive(PathBuf, File),
    Oci(Box<OciImage>),
}

impl RootCache {
    /// Returns the folder that the environment selects. It may not exist.
    ///
    /// # Errors
    /// [`BuildError::NoFolder`].
    pub fn from_environment() -> Result<Self, BuildError> {
        let given = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = || {
            let absolute = given("XDG_CACHE_HOME").filter(|path| path.is_absolute());
            absolute
                .or_else(|| given("HOME").map(|home| home.join(".cache")))
                .map(|cache| cache.join("isola"))
        };
        let folder = given("ISOLA_STATE").or_else(cache).ok_or(BuildError::NoFolder)?;
        Ok(Self::at(&folder.join("roots")))
    }

    /// Returns the folder at a path.
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Returns the image of a source, and makes it if there is none.
    ///
    /// # Errors
    /// [`BuildError`]; there is no image then, or the one from before.
    pub fn image(&self, source: &RootSource) -> Result<RootImage, BuildError> {
        let unusable = BuildError::of_file(&self.folder);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(unusable)?;
        self.remove_parts();
        let (found, digest) = self.find(source)?;
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        if let Some(image) = self.existing(&name) {
            return Ok(image);
        }
        let part = self.lock_part(&name)?;
        // Another process may have made it meanwhile.
        if let Some(image) = self.existing(&name) {
            let _ = fs::remove_file(self.file(&name, "part"));
            return Ok(image);
        }
        let made = self.make(source, &found, digest, &name, part);
        if made.is_err() {
            let _ = fs::remove_file(self.file(&name, "part"));
        }
        made
    }

    /// Returns the images, those of the latest use first.
    pub fn list(&self) -> Vec<CachedImage> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let image = |entry: fs::DirEntry| {
            let file = entry.path();
            let digest = file.file_name()?.to_str()?.strip_suffix(".img")?.to_owned();
            let metadata = entry.metadata().ok()?;
            let unused = SystemTime::now().duration_since(metadata.modified().ok()?).unwrap_or_default();
            let source = self.record(&digest).map_or_else(String::new, |record| record.source);
            Some(CachedImage { digest, file, source, used_bytes: metadata.blocks() * 512, unused })
        };
        let mut images: Vec<_> = entries.flatten().filter_map(image).collect();
        images
            .sort_by(|one, other| one.unused.cmp(&other.unused).then_with(|| one.digest.cmp(&other.digest)));
        images
    }

    /// Removes the images that `is_unneeded` names, and those in the making whose makers have ended. An image that was
    /// used in the last minute stays: its cell may be about to start. Returns the removed ones.
    ///
    /// # Errors
    /// [`BuildError::Unusable`].
    pub fn prune(&self, is_unneeded: impl Fn(&CachedImage) -> bool) -> Result<Vec<CachedImage>, BuildError> {
        self.remove_parts();
        let mut removed = Vec::new();
        for image in self.list() {
            if image.unused >= JUST_USED && is_unneeded(&image) {
                fs::remove_file(&image.file).map_err(BuildError::of_file(&image.file))?;
                let _ = fs::remove_file(self.file(&image.digest, "json"));
                removed.push(image);
            }
        }
        Ok(removed)
    }

    fn file(&self, name: &str, ending: &str) -> PathBuf {
        self.folder.join(format!("{name}.{ending}"))
    }

    fn record(&self, name: &str) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.file(name, "json")).ok()?).ok()
    }

    /// Returns an image that exists, and notes that it is used now.
    fn existing(&self, name: &str) -> Option<RootImage> {
        let path = self.file(name, "img");
        let file = OpenOptions::new().write(true).open(&path).ok()?;
        let record = self.record(name)?;
        let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        Some(RootImage { file: path.canonicalize().ok()?, program: record.program, is_new: false })
    }

    /// Finds a source, and its digest.
    fn find(&self, source: &RootSource) -> Result<(FoundSource, [u8; 32]), BuildError> {
        let (found, of_source) = match source {
            RootSource::Oci { reference } => {
                let image = OciImage::find(reference, &self.folder)?;
                let digest = image.digest;
                (FoundSource::Oci(Box::new(image)), digest)
            }
            RootSource::Path(path) if path.is_dir() => {
                let folder = Folder::read(path)?;
                let digest = folder.digest();
                (FoundSource::Folder(folder), digest)
            }
            RootSource::Path(path) if path.is_file() => {
                let mut file = File::open(path).map_err(BuildError::of_file(path))?;
                let mut digest = Sha256::new();
                let mut writer = DigestWriter(&mut digest);
                io::copy(&mut file, &mut writer).map_err(BuildError::of_file(path))?;
                (FoundSource::Archive(path.clone(), file), digest.finalize().into())
            }
            RootSource::Path(path) => return Err(BuildError::NoSource(path.clone())),
        };
        let mut digest = Sha256::new();
        digest.update(FORMAT);
        digest.update(match &found {
            FoundSource::Folder(_) => b"f",
            FoundSource::Archive(..) => b"a",
            FoundSource::Oci(_) => b"o",
        });
        digest.update(of_source);
        Ok((found, digest.finalize().into()))
    }

    /// Returns the empty file of a new image, locked. Waits for a process that makes the same image.
    fn lock_part(&self, name: &str) -> Result<File, BuildError> {
        let path = self.file(name, "part");
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path).map_err(BuildError::of_file(&path))?;
            file.lock().map_err(BuildError::of_file(&path))?;
            // The process that had the lock has renamed or removed the file.
            if is_at(&file, &path) {
                file.set_len(0).map_err(BuildError::of_file(&path))?;
                return Ok(file);
            }
        }
    }

    fn make(
        &self,
        source: &RootSource,
        found: &FoundSource,
        digest: [u8; 32],
        name: &str,
        part: File,
    ) -> Result<RootImage, BuildError> {
        let (mut tree, mut writer) = (Tree::new(), ImageWriter::new(part));
        let program = match found {
            FoundSource::Folder(folder) => {
                folder.add_to(&mut tree, &mut writer)?;
                ProgramConfig::default()
            }
            FoundSource::Archive(path, file) => {
                io::Seek::rewind(&mut &*file).map_err(BuildError::Read)?;
                let name = path.display().to_string();
                let source = BufReader::with_capacity(1 << 16, file);
                if read_archive(&name, source, &mut tree, &mut writer, Whiteouts::None)? == 0 {
                    return Err(BuildError::NoArchive(name));
                }
                ProgramConfig::default()
            }
            FoundSource::Oci(image) => {
                image.add_to(&mut tree, &mut writer)?;
                image.program()
            }
        };
        let mut identity = [0; 16];
        identity.copy_from_slice(&digest[..16]);
        let file = writer.finish(&tree, identity)?;
        let record = Record { source: source.to_string(), program: program.clone() };
        let json = serde_json::to_vec_pretty(&record).map_err(|error| BuildError::Write(error.into()))?;
        fs::write(self.file(name, "json"), json).map_err(BuildError::Write)?;
        // A host that loses power has either no image, or a complete one.
        file.sync_all().map_err(BuildError::Write)?;
        let path = self.file(name, "img");
        fs::rename(self.file(name, "part"), &path).map_err(BuildError::Write)?;
        Ok(RootImage {
            file: path.canonicalize().map_err(BuildError::of_file(&path))?,
            program,
            is_new: true,
        })
    }

    /// Removes the files of makers that have ended.
    fn remove_parts(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for path in entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension() == Some("part".as_ref()))
        {
            let Ok(file) = OpenOptions::new().write(true).open(&path) else { continue };
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => drop(fs::remove_file(&path)),
                Ok(()) | Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
            }
        }
    }
}

/// Returns whether a path still leads to an open file.
fn is_at(file: &File, path: &Path) -> bool {
    let same =
        |one: &fs::Metadata, other: &fs::Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(one), Ok(other)) if same(&one, &other))
}

struct DigestWriter<'a>(&'a mut Sha256);

impl io::Write for DigestWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
