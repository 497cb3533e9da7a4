//! Images: their search, and the part of them that is sent to a machine.
//!
//! | module | contents |
//! |---|---|
//! | this | search of an image by its name or path |
//! | [`elf`] | checks of a cell image, and removal of the data that a machine does not need |
//! | [`signing`] | keys and signatures |

pub mod elf;
pub mod signing;

use crate::names::nearest;
use elf::{ElfImage, ImageError};
use isola_abi::integrity::ImageDigest;
use isola_abi::session::GREETING;
use sha2::{Digest, Sha256};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Name of the supervisor's image.
pub const SUPERVISOR: &str = "supervisor";

/// The folders that are searched for images by name.
#[derive(Clone, Debug)]
pub struct ImageStore {
    folders: Vec<PathBuf>,
}

/// The reasons why an image was not found, or cannot be used.
#[derive(Debug, Error)]
pub enum FindError {
    /// No file has that path.
    #[error("there is no image at {0}")]
    NoFile(PathBuf),
    /// No image has that name.
    #[error(
        "no image is called {name:?}{}; looked in {folders}: build the images with `cargo xtask images`, or give a path",
        did_you_mean(meant)
    )]
    NoName {
        /// The name.
        name: String,
        /// An image with a similar name.
        meant: Option<String>,
        /// The searched folders.
        folders: String,
    },
    /// No program has that name.
    #[error(
        "no application is built as a process under the name {name:?}{}; looked in {folders}: build them with \
         `cargo hosted`, or give a path",
        did_you_mean(meant)
    )]
    NoHosted {
        /// The name.
        name: String,
        /// A program with a similar name.
        meant: Option<String>,
        /// The searched folders.
        folders: String,
    },
    /// The file is a cell image and not a program.
    #[error(
        "{0} is a cell image, and no process: leave --hosted out, or build the applications with `cargo hosted`"
    )]
    NotHosted(PathBuf),
    /// The file is not a cell image.
    #[error("{path} cannot run as a cell: {error}")]
    Rejected {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: ImageError,
    },
}

fn did_you_mean(meant: &Option<String>) -> String {
    meant.as_ref().map(|name| format!(" (did you mean {name:?}?)")).unwrap_or_default()
}

/// An image that can be sent.
#[derive(Debug)]
pub struct CellImage {
    /// The image's name, for display.
    pub name: String,
    /// The path of the complete file.
    pub path: PathBuf,
    /// The bytes to send to a machine.
    pub bytes: Vec<u8>,
    /// The SHA-256 of these bytes.
    pub digest: ImageDigest,
}

impl CellImage {
    /// Returns whether the image's programs have standard input, by the greeting that its sessions send.
    pub fn serves_sessions(&self) -> bool {
        self.bytes.windows(GREETING.len()).any(|bytes| bytes == GREETING)
    }

    /// Reads the cell image in the file `path`.
    ///
    /// # Errors
    /// [`FindError::Rejected`].
    pub fn read(path: PathBuf) -> Result<Self, FindError> {
        let rejected = |error| FindError::Rejected { path: path.clone(), error };
        let file = fs::read(&path).map_err(|error| rejected(ImageError::Unreadable(error.to_string())))?;
        let bytes = ElfImage::parse(&file).and_then(|image| {
            image.check_note()?;
            image.trimmed()
        });
        let bytes = bytes.map_err(rejected)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let digest = ImageDigest(Sha256::digest(&bytes).into());
        Ok(Self { name, path, bytes, digest })
    }
}

impl ImageStore {
    /// Returns the store of the folder in `ISOLA_IMAGES` and the folder of the running program.
    pub fn from_environment() -> Self {
        let named =
            env::var_os("ISOLA_IMAGES").filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
        let own = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
        // If both are the same folder, list it once.
        let own = own.filter(|own| Some(own) != named.as_ref());
        Self { folders: named.into_iter().chain(own).collect() }
    }

    /// Returns the store of the images in these folders.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders }
    }

    /// Returns the path of the image `name`; a name with a `/` is a path.
    ///
    /// # Errors
    /// [`FindError::NoFile`] or [`FindError::NoName`].
    pub fn find(&self, name: &str) -> Result<PathBuf, FindError> {
        if name.contains('/') {
            let path = PathBuf::from(name);
            return if path.is_file() { Ok(path) } else { Err(FindError::NoFile(path)) };
        }
        let found = self.folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        found.filter(|_| !name.is_empty()).ok_or_else(|| {
            let known = self.cell_images();
            FindError::NoName {
                name: name.to_owned(),
                meant: nearest(name, known.iter().map(String::as_str)).map(str::to_owned),
                folders: self.folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", "),
            }
        })
    }

    /// Returns the path of the application `name` as a hosted program; a name with a `/` is a path.
    ///
    /// # Errors
    /// [`FindError::NoFile`], [`FindError::NoHosted`] or [`FindError::NotHosted`].
    pub fn hosted(&self, name: &str) -> Result<PathBuf, FindError> {
        let path = if name.contains('/') {
            self.find(name)?
        } else {
            // Cargo builds images into `release` and hosted programs into `hosted`, beside it.
            let beside = |folder: &PathBuf| folder.parent().map(|parent| parent.join("hosted"));
            let inside = |folder: &PathBuf| Some(folder.join("hosted"));
            let folders: Vec<PathBuf> =
                self.folders.iter().flat_map(|folder| [inside(folder), beside(folder)]).flatten().collect();
            let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
            found.filter(|_| !name.is_empty()).ok_or_else(|| {
                let known = programs(&folders);
                FindError::NoHosted {
                    name: name.to_owned(),
                    meant: nearest(name, known.iter().map(String::as_str)).map(str::to_owned),
                    folders: folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", "),
                }
            })?
        };
        if is_cell_image(&path) { Err(FindError::NotHosted(path)) } else { Ok(path) }
    }

    /// Reads the cell image `name`.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn cell_image(&self, name: &str) -> Result<CellImage, FindError> {
        CellImage::read(self.find(name)?)
    }

    /// Returns the names of all cell images in the folders.
    pub fn cell_images(&self) -> Vec<String> {
        let files = self.folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let mut names: Vec<String> = files
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .filter(|entry| is_cell_image(&entry.path()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Returns the names of the programs in these folders. Cargo's other files have a dot in their names.
fn programs(folders: &[PathBuf]) -> Vec<String> {
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let files = files.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let names = files.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !name.contains('.')).collect()
}

fn is_cell_image(path: &Path) -> bool {
    // A build folder has many other files: read only those completely that begin like an ELF file.
    let mut magic = [0; 4];
    let begins = fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    begins.is_ok()
        && magic == *b"\x7fELF"
        && fs::read(path)
            .is_ok_and(|file| ElfImage::parse(&file).is_ok_and(|image| image.check_note().is_ok()))
}

#[cfg(test)]
mod tests {
    use super::elf::tests::cell_elf;
    use super::*;

    #[test]
    fn images_are_found_by_name_and_by_path() {
        let dir = tempfile::tempdir().unwrap();
        let kv = dir.path().join("kv");
        fs::write(&kv, cell_elf()).unwrap();
        fs::write(dir.path().join("notes.txt"), "no image").unwrap();
        let store = ImageStore::new(vec![dir.path().join("absent"), dir.path().to_owned()]);
        assert_eq!(store.find("kv").unwrap(), kv);
        assert_eq!(store.find(kv.to_str().unwrap()).unwrap(), kv);
        assert_eq!(store.cell_images(), ["kv"]);
        assert_eq!(store.cell_image("kv").unwrap().name, "kv");
        let text = store.cell_image("notes.txt").unwrap_err().to_string();
        assert!(text.contains("no 64-bit x86 ELF"), "{text}");
        let missing = store.find("kvv").unwrap_err().to_string();
        assert!(missing.contains("did you mean \"kv\"?"), "{missing}");
        assert!(matches!(store.find("./kvv"), Err(FindError::NoFile(_))));
        assert!(store.find("").is_err());
    }
}
