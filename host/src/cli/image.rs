//! `isola image`: digests and signatures of images.

use super::{Context, Failure, complete};
use crate::image::signing;
use crate::machine::LockedMachine;
use crate::output::table;
use clap::{Args, Subcommand};
use isola_abi::integrity::ImageDigest;
use isola_abi::size::ByteSize;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Digests and signatures of images, and the images in a machine's store
#[derive(Debug, Args)]
#[command(after_help = "\
An image is identified by the SHA-256 of the part that a machine loads; debugging information does not count. The \
supervisor computes it during the upload. If a manifest or `isola run` demands a digest or a signature, the \
supervisor checks it before it uses any part of the image.

Examples:
  isola image digest kv
  isola image keygen release.key          makes release.key and release.key.pub
  isola image sign --key release.key kv   writes the signature beside the image, as kv.sig
  isola run -d --signed-by release.key.pub kv
  isola image ls                          the images in the machine's store, which need no upload")]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Prints the SHA-256 of images
    Digest {
        /// The images: names or paths
        #[arg(required = true, add = complete::images())]
        images: Vec<String>,
    },
    /// Generates a key to sign images with: the private half in FILE, the public one in FILE.pub
    Keygen {
        /// The file, which must not exist yet
        file: PathBuf,
    },
    /// Signs images; writes each signature beside its image
    Sign {
        /// The file with the private key
        #[arg(long)]
        key: PathBuf,
        /// The images: names or paths
        #[arg(required = true, add = complete::images())]
        images: Vec<String>,
    },
    /// Checks that the holder of a key signed the images
    Verify {
        /// The public key: its digits, or its file
        #[arg(long)]
        key: String,
        /// The images: names or paths
        #[arg(required = true, add = complete::images())]
        images: Vec<String>,
    },
    /// Lists the images in the machine's store
    Ls,
}

/// An image: the JSON form.
#[derive(Serialize)]
struct ImageView {
    /// The name, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// The digest.
    sha256: ImageDigest,
    /// The length of the loaded part.
    len_bytes: u64,
    /// The number of cells that use a stored image.
    #[serde(skip_serializing_if = "Option::is_none")]
    cells: Option<u32>,
}

pub(super) fn image(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Digest { images } => {
            let views = images.iter().map(|name| {
                let image = context.images.cell_image(name)?;
                let (sha256, len_bytes) = (image.digest, image.bytes.len() as u64);
                Ok(ImageView { image: Some(name.clone()), sha256, len_bytes, cells: None })
            });
            let views: Vec<ImageView> = views.collect::<Result<_, Failure>>()?;
            let line =
                |view: &ImageView| format!("{}  {}", view.sha256, view.image.as_deref().unwrap_or_default());
            context.output.answer(&views, || views.iter().map(line).collect::<Vec<_>>().join("\n"))?;
        }
        Verb::Keygen { file } => {
            let key = signing::generate(file)?;
            context.output.answer(&key, || key.to_string())?;
        }
        Verb::Sign { key, images } => {
            let mut written = Vec::new();
            for name in images {
                let image = context.images.cell_image(name)?;
                let (_, signature) = signing::sign(key, &image.digest)?;
                written.push(signing::write_signature(&image.path, &signature)?);
            }
            let lines = || written.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
            context.output.answer(&written, || lines().join("\n"))?;
        }
        Verb::Verify { key, images } => verify(context, key, images)?,
        Verb::Ls => list(context)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(context: &Context, key: &str, images: &[String]) -> Result<(), Failure> {
    let key = signing::public_key(key)?;
    for name in images {
        let image = context.images.cell_image(name)?;
        let wrong = |what: &str| Failure::new(super::failure::REFUSED, format!("{name:?} {what}"));
        let signature = signing::read_signature(&image.path)?.ok_or_else(|| wrong("is not signed"))?;
        if !signing::verify(&key, &image.digest, &signature) {
            return Err(wrong(&format!("has no valid signature of the key {key}")));
        }
    }
    context.output.answer(&images, || images.join("\n"))?;
    Ok(())
}

fn list(context: &Context) -> Result<(), Failure> {
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let stored = locked.client()?.images()?;
    let view = |image: &isola_abi::management::ImageInfo| ImageView {
        image: None,
        sha256: image.digest,
        len_bytes: image.len_bytes,
        cells: Some(image.cells),
    };
    let views: Vec<ImageView> = stored.iter().map(view).collect();
    let row = |view: &ImageView| {
        let cells = view.cells.unwrap_or_default();
        vec![view.sha256.to_string(), ByteSize(view.len_bytes).to_string(), cells.to_string()]
    };
    context.output.answer(&views, || table(&["SHA256", "LENGTH", "CELLS"], views.iter().map(row)))?;
    Ok(())
}
