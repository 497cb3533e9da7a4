//! The tree as cargo and the file system see it: packages, images, files.

use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, MetadataCommand, Package, Target};

use crate::error::Error;

/// What an image is for, as `[package.metadata.isola] image = "..."` says.
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
    /// The kind that `word` names in a manifest.
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
    /// The package that it belongs to.
    pub package: String,
    /// The name of the binary, and of the file.
    pub name: String,
    /// The feature that its binary requires, if it requires one: `image`.
    pub feature: Option<String>,
    /// What it is for.
    pub kind: ImageKind,
    /// Where it is once it is built.
    pub path: PathBuf,
}

/// The tree.
pub struct Workspace {
    metadata: Metadata,
}

impl Workspace {
    /// Asks cargo about the tree that xtask was built from.
    ///
    /// # Errors
    /// [`Error::Metadata`] when cargo refuses a manifest.
    pub fn open() -> Result<Self, Error> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        Ok(Self { metadata: MetadataCommand::new().manifest_path(manifest).exec()? })
    }

    /// The folder of the tree.
    pub fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    /// All that cargo knows, third-party packages included.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Our own packages.
    pub fn members(&self) -> Vec<&Package> {
        self.metadata.workspace_packages()
    }

    /// The folder of one of our packages, relative to the root, `/` between its parts.
    pub fn folder(&self, package: &Package) -> String {
        let folder = package.manifest_path.parent().unwrap_or(&package.manifest_path);
        self.relative(folder.as_std_path())
    }

    /// `path` as a reader of messages wants it: relative to the root.
    pub fn relative(&self, path: &Path) -> String {
        path.strip_prefix(self.root()).unwrap_or(path).to_string_lossy().into_owned()
    }

    /// All images of the tree, sorted by name.
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

    /// Where cargo puts images.
    pub fn image_folder(&self) -> PathBuf {
        self.metadata.target_directory.as_std_path().join("release")
    }

    /// The files of the tree that git would take, sorted.
    ///
    /// # Errors
    /// [`Error::List`] when a folder cannot be read.
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

    /// The files whose name ends in one of `extensions`.
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

/// What sort of image `package` is; `None` for a package that is no image.
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
