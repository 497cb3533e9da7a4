//! `cargo xtask images`: builds every image, including those for tests.
//!
//! The alias `cargo images` (in `.cargo/config.toml`) builds the images that a user can start, without xtask.

use std::collections::BTreeSet;
use std::fs;

use crate::Verdict;
use crate::cargo::{cargo, succeeds};
use crate::check;
use crate::error::Error;
use crate::workspace::{Image, Workspace};

/// The command-line arguments: none.
#[derive(clap::Args)]
pub struct Args {}

/// Builds the images, prints their sizes and paths, and checks them.
pub fn run(_: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let images = build(workspace, |_| true)?;
    build_hosted(workspace, &[])?;
    for image in images {
        let meta =
            fs::metadata(&image.path).map_err(|source| Error::Read { path: image.path.clone(), source })?;
        println!("{:>9}  {}", format!("{} KiB", meta.len().div_ceil(1024)), workspace.relative(&image.path));
    }
    Ok(check::run_on_images(workspace))
}

/// Enables LTO over all crates of an image. It is not part of the profile, because it would slow down the link of the
/// host tool.
pub const OPTIMISED_AS_A_WHOLE: &str = "--config=profile.release.lto='fat'";

/// Builds the images whose names are `wanted`, optimised, and returns them.
///
/// # Errors
/// [`Error::ImagesNotBuilt`] if cargo fails; cargo has printed the cause.
pub fn build(workspace: &Workspace, wanted: impl Fn(&str) -> bool) -> Result<Vec<Image>, Error> {
    let mut images = workspace.images();
    images.retain(|image| wanted(&image.name));
    let mut command = cargo(workspace);
    command.args(["build", "--quiet", "--release", OPTIMISED_AS_A_WHOLE]).args(selection(&images));
    if images.is_empty() || succeeds(&mut command)? { Ok(images) } else { Err(Error::ImagesNotBuilt) }
}

/// For [`build_hosted`]: leaves out LTO over all crates, most of the time of the build. As in `tests/src/images.rs`.
pub const WITHOUT_LTO: &str = "--config=profile.hosted.lto=false";

/// Builds the applications as Linux processes, as `cargo hosted` does, and those for tests and figures.
///
/// # Errors
/// [`Error::ImagesNotBuilt`] if cargo fails; cargo has printed the cause.
pub fn build_hosted(workspace: &Workspace, arguments: &[&str]) -> Result<(), Error> {
    let others = ["--package=isola-conformance-image", "--package=isola-costs", "--package=isola-own-ebbs"];
    let built = succeeds(cargo(workspace).args(["hosted", "--quiet"]).args(arguments).args(others))?;
    if built { Ok(()) } else { Err(Error::ImagesNotBuilt) }
}

/// Returns cargo's arguments that select `images` and nothing else.
pub fn selection(images: &[Image]) -> Vec<String> {
    let packages = images.iter().map(|image| format!("--package={}", image.package));
    let features = images.iter().filter_map(|image| Some((&image.package, image.feature.as_ref()?)));
    let features = features.map(|(package, feature)| format!("--features={package}/{feature}"));
    let selected: BTreeSet<String> = packages.chain(features).collect();
    std::iter::once("--bins".to_owned()).chain(selected).collect()
}
