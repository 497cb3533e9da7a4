//! `cargo xtask images`: builds every image, including those for tests.
//!
//! The alias `cargo images` (in `.cargo/config.toml`) builds the images that a user can start, without xtask.
//!
//! The link of an image optimises all of its crates, which takes most of the time of the build. For tests, images that only
//! tests start are optimised less and without link-time optimisation, and the applications as Linux processes not at all: no
//! test measures their speed ([decision 0120](../../docs/decisions/0120-time-of-a-run-from-nothing.md)).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::Package;

use crate::cargo::{cargo, succeeds};
use crate::error::Error;
use crate::workspace::{Image, ImageKind, Workspace};
use crate::{Verdict, check, gate};

/// The command-line arguments: none.
#[derive(clap::Args)]
pub struct Args {}

/// Builds the images, prints their sizes and paths, and checks them.
pub fn run(_: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    for image in build_for_tests(workspace)? {
        let meta =
            fs::metadata(&image.path).map_err(|source| Error::Read { path: image.path.clone(), source })?;
        println!("{:>9}  {}", format!("{} KiB", meta.len().div_ceil(1024)), workspace.relative(&image.path));
    }
    Ok(check::run_on_images(workspace))
}

/// Enables LTO over all crates of an image. It is not part of the profile, because it would slow down the link of the
/// host tool.
pub const OPTIMISED_AS_A_WHOLE: &str = "--config=profile.release.lto='fat'";

/// The same profile, and so the same build scripts and procedural macros, for images that only tests start.
const FOR_TESTS_ALONE: [&str; 2] =
    ["--config=profile.release.lto='off'", "--config=profile.release.opt-level=1"];

/// Builds the images whose names are `wanted`, optimised, and returns them.
///
/// # Errors
/// [`Error::ImagesNotBuilt`] if cargo fails; cargo has printed the cause.
pub fn build(workspace: &Workspace, wanted: impl Fn(&str) -> bool) -> Result<Vec<Image>, Error> {
    let mut images = workspace.images();
    images.retain(|image| wanted(&image.name));
    build_selected(workspace, &images, &[OPTIMISED_AS_A_WHOLE])?;
    Ok(images)
}

fn build_selected(workspace: &Workspace, images: &[Image], profile: &[&str]) -> Result<(), Error> {
    let mut command = cargo(workspace);
    command.args(["build", "--quiet", "--release"]).args(profile).args(selection(images));
    if images.is_empty() || succeeds(&mut command)? { Ok(()) } else { Err(Error::ImagesNotBuilt) }
}

/// Returns the folder with all images as the machine tests use them; its folder `hosted` has the applications as Linux
/// processes. The files are links to those that cargo builds.
pub fn folder_for_tests(workspace: &Workspace) -> PathBuf {
    workspace.metadata().target_directory.join("images-for-tests").into_std_path_buf()
}

/// Builds all images and hosted applications in [`folder_for_tests`], and returns the images.
///
/// # Errors
/// [`Error::ImagesNotBuilt`] if cargo fails; cargo has printed the cause. [`Error::Write`].
pub fn build_for_tests(workspace: &Workspace) -> Result<Vec<Image>, Error> {
    let folder = folder_for_tests(workspace);
    let mut images = workspace.images();
    let (of_tests, others): (Vec<_>, Vec<_>) = images.iter().cloned().partition(is_for_tests_alone);
    build_selected(workspace, &others, &[OPTIMISED_AS_A_WHOLE])?;
    build_selected(workspace, &of_tests, &FOR_TESTS_ALONE)?;
    for image in &mut images {
        image.path = link(&image.path, &folder)?;
    }
    // Without optimisation, and with the features of the whole tree, so that nearly all libraries are those of the tests on
    // the host.
    let members = workspace.members();
    let hosted: Vec<&Package> = members.into_iter().filter(|package| is_hosted(package)).collect();
    let mut command = cargo(workspace);
    command.args(["build", "--quiet", "--workspace"]);
    command.args(hosted.iter().map(|package| format!("--features={}/hosted", package.name)));
    let targets = hosted.iter().flat_map(|package| &package.targets).filter(|target| target.is_bin());
    command.args(targets.map(|target| format!("--bin={}", target.name)));
    if !succeeds(&mut command)? {
        return Err(Error::ImagesNotBuilt);
    }
    let built = workspace.metadata().target_directory.join("debug").into_std_path_buf();
    for target in hosted.iter().flat_map(|package| &package.targets).filter(|target| target.is_bin()) {
        link(&built.join(&target.name), &folder.join("hosted"))?;
    }
    Ok(images)
}

/// Returns whether users do not start the image, and the gate does not count its instructions.
fn is_for_tests_alone(image: &Image) -> bool {
    image.kind == ImageKind::Test && !gate::NEEDED.contains(&&*image.name)
}

/// Returns whether a package has a program that also runs as a Linux process.
fn is_hosted(package: &Package) -> bool {
    package.features.contains_key("hosted") && package.targets.iter().any(|target| target.is_bin())
}

/// Makes a link to `file` in `folder` in place of an earlier one, and returns its path.
fn link(file: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let path = folder.join(file.file_name().unwrap_or_default());
    let broken = |source| Error::Write { path: path.clone(), source };
    fs::create_dir_all(folder).map_err(broken)?;
    if path.exists() {
        fs::remove_file(&path).map_err(broken)?;
    }
    fs::hard_link(file, &path).map_err(broken)?;
    Ok(path)
}

/// Builds the applications as Linux processes, as `cargo hosted` does, and those for tests and figures.
///
/// # Errors
/// [`Error::ImagesNotBuilt`] if cargo fails; cargo has printed the cause.
pub fn build_hosted(workspace: &Workspace) -> Result<(), Error> {
    let others = ["--package=isola-conformance-image", "--package=isola-costs", "--package=isola-own-ebbs"];
    let built = succeeds(cargo(workspace).args(["hosted", "--quiet"]).args(others))?;
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
