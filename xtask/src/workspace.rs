//! The tree from the perspective of cargo and the file system: packages, images, files.

use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, MetadataCommand, Package, Target};

use crate::error::Error;

/// The purpose of an image, according to `[package.metadata.isola] image = "..."`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageKind {
    /// The supervisor.
    Supervisor,
    /// An application that a user can start.
    Cell,
    /// A cell or a machine image that only tests start.
    Test,
}

impl ImageKind {
    /// Returns the kind that `word` names in a manifest.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "supervisor" => Some(Self::Supervisor),
            "cell" => Some(Self::Cell),
            "test" => Some(Self::Test),
            _ => None,
        }
    }
}

/// An image: one binary of an image package.
#[derive(Clone, Debug)]
pub struct Image {
    /// The package of the image.
    pub package: String,
    /// The name of the binary, and of the file.
    pub name: String,
    /// The feature that its binary requires, if any: `image`.
    pub feature: Option<String>,
    /// Its purpose.
    pub kind: ImageKind,
    /// The path of the built image.
    pub path: PathBuf,
}

/// The tree.
pub struct Workspace {
    metadata: Metadata,
}

impl Workspace {
    /// Reads cargo's metadata of the tree from which xtask was built.
    ///
    /// # Errors
    /// [`Error::Metadata`] if cargo rejects a manifest.
    pub fn open() -> Result<Self, Error> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        Ok(Self { metadata: MetadataCommand::new().manifest_path(manifest).exec()? })
    }

    /// Returns the folder of the tree.
    pub fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    /// Returns cargo's metadata, including third-party packages.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the packages of the tree.
    pub fn members(&self) -> Vec<&Package> {
        self.metadata.workspace_packages()
    }

    /// Returns the folder of a package of the tree, relative to the root, with `/` between its parts.
    pub fn folder(&self, package: &Package) -> String {
        let folder = package.manifest_path.parent().unwrap_or(&package.manifest_path);
        self.relative(folder.as_std_path())
    }

    /// Returns `path` relative to the root, for messages.
    pub fn relative(&self, path: &Path) -> String {
        path.strip_prefix(self.root()).unwrap_or(path).to_string_lossy().into_owned()
    }

    /// Returns all images of the tree, sorted by name.
    pub fn images(&self) -> Vec<Image> {
        let mut images: Vec<Image> = self
            .members()
            .into_iter()
            .filter_map(|package| Some((package, image_kind(package)?)))
            .flat_map(|(package, kind)| {
                package
                    .targets
                    .iter()
                    .filter(|target| target.is_bin())
                    .map(move |target| (package, kind, target))
            })
            .map(|(package, kind, target)| Image {
                package: package.name.to_string(),
                name: target.name.clone(),
                feature: target.required_features.first().cloned(),
                kind,
                path: self.image_path(target),
            })
            .collect();
        images.sort_by(|a, b| a.name.cmp(&b.name));
        images
    }

    fn image_path(&self, target: &Target) -> PathBuf {
        self.image_folder().join(&target.name)
    }

    /// Returns the folder of built images.
    pub fn image_folder(&self) -> PathBuf {
        self.metadata.target_directory.as_std_path().join("release")
    }

    /// Returns the files of the tree that git does not ignore, sorted.
    ///
    /// # Errors
    /// [`Error::List`] if a folder cannot be read.
    pub fn files(&self) -> Result<Vec<PathBuf>, Error> {
        let mut files = Vec::new();
        let walk = ignore::WalkBuilder::new(self.root())
            .hidden(false)
            .parents(false)
            .require_git(false)
            .filter_entry(|entry| entry.file_name() != ".git")
            .build();
        for entry in walk {
            let entry = entry?;
            if entry.file_type().is_some_and(|kind| kind.is_file()) {
                files.push(entry.into_path());
            }
        }
        files.sort();
        Ok(files)
    }

    /// Returns the files with one of the `extensions`.
    ///
    /// # Errors
    /// See [`Workspace::files`].
    pub fn files_ending_in(&self, extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
        let mut files = self.files()?;
        files.retain(|path| {
            path.extension().is_some_and(|end| extensions.iter().any(|wanted| end == *wanted))
        });
        Ok(files)
    }
}

/// Returns the kind of image that `package` is; `None` if it is no image.
///
/// `image = true` is short for a cell.
pub fn image_kind(package: &Package) -> Option<ImageKind> {
    let value = package.metadata.get("isola")?.get("image")?;
    match value.as_str() {
        Some(word) => ImageKind::from_word(word),
        None => value.as_bool().filter(|is_image| *is_image).map(|_| ImageKind::Cell),
    }
}

/// Reads a text file.
///
/// # Errors
/// [`Error::Read`] with its path.
pub fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}
