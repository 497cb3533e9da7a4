//! OCI images: from the index of a layout to the layers of an image.
//!
//! | module | contents |
//! |---|---|
//! | this | choosing an image, and applying its layers |
//! | `layout` | the files of a layout, in a folder or an archive; blobs with checked digests |
//! | `documents` | the JSON documents |
//!
//! The format is the OCI image specification 1.1; Docker's documents with the same contents are read as well.

mod documents;
mod layout;

use self::documents::{Config, Descriptor, Index, Manifest, Platform};
use self::layout::Layout;
use crate::archive::read_archive;
use crate::compression::decompress;
use crate::config::ProgramConfig;
use crate::ext4::ImageWriter;
use crate::source::layout_and_tag;
use crate::tree::{Tree, Whiteouts};
use crate::{BuildError, MOST_BYTES};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

/// The most bytes of a JSON document.
const MOST_DOCUMENT: u64 = 4 << 20;
/// The most indexes that lead to a manifest.
const MOST_INDEXES: usize = 4;
/// The most layers of an image.
const MOST_LAYERS: usize = 512;
/// The key of the tag in the annotations of an index.
const TAG: &str = "org.opencontainers.image.ref.name";
/// The tag of a reference without one, if there are several images.
const LATEST: &str = "latest";

/// An image of a layout.
pub struct OciImage {
    path: PathBuf,
    layout: Layout,
    manifest: Manifest,
    config: Config,
    /// The digest of the manifest.
    pub digest: [u8; 32],
}

impl OciImage {
    /// Finds the image of `LAYOUT[:TAG]` for this processor. Layers are not read.
    ///
    /// # Errors
    /// [`BuildError::Oci`], [`BuildError::Unusable`].
    pub fn find(reference: &str, scratch: &Path) -> Result<Self, BuildError> {
        let (path, tag) = layout_and_tag(reference);
        let layout = Layout::open(&path, scratch)?;
        let refuse = |reason: String| BuildError::Oci { layout: path.clone(), reason };
        let index = layout.read_file("index.json", MOST_DOCUMENT).map_err(&refuse)?;
        let index: Index = parse("index.json", &index).map_err(&refuse)?;
        let descriptor = choose(&index, tag).map_err(&refuse)?;
        let (manifest, digest) = manifest_of(&layout, descriptor).map_err(&refuse)?;
        if manifest.layers.len() > MOST_LAYERS {
            return Err(refuse(format!("the image has more than {MOST_LAYERS} layers")));
        }
        let config = layout.read_blob(&manifest.config, MOST_DOCUMENT).map_err(&refuse)?;
        let config = parse::<Config>("the image's configuration", &config).map_err(&refuse)?;
        let for_other = |platform: &&Platform| !platform.is_ours();
        if let Some(platform) = config.platform().filter(for_other) {
            return Err(refuse(format!("the image is for {platform}, and cells run linux/amd64")));
        }
        Ok(Self { path, layout, manifest, config, digest })
    }

    /// Returns the configuration of the program.
    pub fn program(&self) -> ProgramConfig {
        self.config.program()
    }

    /// Adds the files of all layers to a tree, and their contents to an image.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn add_to(&self, tree: &mut Tree, writer: &mut ImageWriter) -> Result<(), BuildError> {
        let refuse = |reason: String| BuildError::Oci { layout: self.path.clone(), reason };
        let digests = self.config.layer_digests();
        if digests.len() != self.manifest.layers.len() {
            return Err(refuse(format!(
                "the manifest has {} layers, and the configuration {}",
                self.manifest.layers.len(),
                digests.len()
            )));
        }
        for (layer, digest) in self.manifest.layers.iter().zip(digests) {
            if !layer.is_layer() {
                return Err(refuse(format!("{} has an unknown type, {}", layer.digest, layer.media_type)));
            }
            tree.begin_layer();
            let blob = self.layout.open_blob(layer).map_err(&refuse)?;
            let mut checked = Checked::new(blob);
            let stream = decompress(BufReader::new(&mut checked)).map_err(BuildError::Read)?;
            let mut contents = Checked::new(stream);
            // `contents` is decompressed: no layer is compressed twice.
            let archive = BufReader::with_capacity(1 << 16, &mut contents);
            read_archive(&layer.digest, archive, tree, writer, Whiteouts::Apply)?;
            let of_contents = contents.finish()?;
            if of_contents != *digest {
                return Err(refuse(format!(
                    "the files of layer {} are not those of the configuration",
                    layer.digest
                )));
            }
            if checked.finish()? != layer.digest {
                return Err(refuse(format!("{} has other contents than its name says", layer.digest)));
            }
        }
        Ok(())
    }
}

/// A stream with the digest of its bytes.
struct Checked<R> {
    source: R,
    digest: Sha256,
}

impl<R: Read> Checked<R> {
    fn new(source: R) -> Self {
        Self { source, digest: Sha256::new() }
    }

    /// Reads the rest. Returns the digest of all bytes.
    fn finish(mut self) -> Result<String, BuildError> {
        io::copy(&mut (&mut self).take(MOST_BYTES), &mut io::sink()).map_err(BuildError::Read)?;
        Ok(text_of(&self.digest.finalize()))
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.digest.update(&buffer[..count]);
        Ok(count)
    }
}

/// Returns a digest as OCI writes it.
fn text_of(digest: &[u8]) -> String {
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("{name} is not valid: {error}"))
}

/// Chooses the image with a tag.
fn choose<'a>(index: &'a Index, tag: Option<&str>) -> Result<&'a Descriptor, String> {
    let images: Vec<&Descriptor> =
        index.manifests.iter().filter(|image| image.is_manifest() || image.is_index()).collect();
    let tag_of = |image: &Descriptor| image.annotations.get(TAG).cloned().unwrap_or_default();
    // A reference with a name before the tag, as some tools write it.
    let has = |image: &Descriptor, tag: &str| {
        let own = tag_of(image);
        own == tag || own.rsplit_once(':').is_some_and(|(_, own)| own == tag && !own.contains('/'))
    };
    let wanted = match (tag, images.as_slice()) {
        (None, []) => return Err("the layout has no image".into()),
        (None, [image]) => return Ok(image),
        (None, _) => LATEST,
        (Some(tag), _) => tag,
    };
    // Images of several platforms may have one tag.
    let mut tagged = images.iter().filter(|image| has(image, wanted));
    let ours = tagged.clone().find(|image| image.platform.as_ref().is_none_or(Platform::is_ours));
    ours.or_else(|| tagged.next()).copied().ok_or_else(|| {
        let tags: Vec<String> =
            images.iter().map(|image| tag_of(image)).filter(|tag| !tag.is_empty()).collect();
        format!("there is no image {wanted:?}; the layout has {}", tags.join(", "))
    })
}

/// Follows indexes to the manifest for this processor. Returns it with its digest.
fn manifest_of(layout: &Layout, descriptor: &Descriptor) -> Result<(Manifest, [u8; 32]), String> {
    let mut descriptor = descriptor.clone();
    for _ in 0..MOST_INDEXES {
        let bytes = layout.read_blob(&descriptor, MOST_DOCUMENT)?;
        if descriptor.is_manifest() {
            return Ok((parse("the manifest", &bytes)?, Sha256::digest(&bytes).into()));
        }
        let index: Index = parse("an index", &bytes)?;
        let found =
            index.manifests.iter().find(|image| image.platform.as_ref().is_some_and(Platform::is_ours));
        let found = found.or_else(|| index.manifests.iter().find(|image| image.platform.is_none()));
        let platforms = || {
            let all = index.manifests.iter().filter_map(|image| image.platform.as_ref());
            all.map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        descriptor = found
            .filter(|image| image.is_manifest() || image.is_index())
            .cloned()
            .ok_or_else(|| format!("the image is not for linux/amd64, but for {}", platforms()))?;
    }
    Err(format!("more than {MOST_INDEXES} indexes lead to the manifest"))
}
