//! `isola rootfs`: the images of root file systems that `isola run --rootfs` has made.

use super::{Context, Failure};
use crate::machine::cells::CellStore;
use crate::machine::is_up;
use crate::output::table;
use clap::{Args, Subcommand};
use isola_abi::size::ByteSize;
use isola_root_image::{CachedImage, RootCache};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The digits of a digest in tables.
const SHORT: usize = 12;

/// Lists and removes the images of root file systems that `isola run --rootfs` has made
#[derive(Debug, Args)]
#[command(after_help = "\
`isola run --rootfs` makes a read-only block image of a root file system once, and uses it again for the same contents. \
The images are in the folder `roots` of ISOLA_STATE, or of the user's cache folder (~/.cache/isola).

Examples:
  isola rootfs ls
  isola rootfs prune                      removes those that no cell has
  isola rootfs prune --unused 7           removes those that were not used for a week")]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists the images, those of the latest use first
    Ls,
    /// Removes images that no cell has
    Prune {
        /// Only those that were not used for this number of days
        #[arg(long, value_name = "DAYS", default_value_t = 0)]
        unused: u32,
    },
}

/// An image: the JSON form.
#[derive(Serialize)]
struct ImageView {
    digest: String,
    source: String,
    file: PathBuf,
    /// The bytes that the file occupies on this host.
    used_bytes: u64,
    /// The seconds since its latest use.
    unused_s: u64,
    /// Whether a cell has it.
    is_in_use: bool,
}

pub(super) fn rootfs(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let cache = RootCache::from_environment()?;
    let used = files_in_use(context);
    let is_used = |image: &CachedImage| image.file.canonicalize().is_ok_and(|file| used.contains(&file));
    let view = |image: &CachedImage| ImageView {
        digest: image.digest.clone(),
        source: image.source.clone(),
        file: image.file.clone(),
        used_bytes: image.used_bytes,
        unused_s: image.unused.as_secs(),
        is_in_use: is_used(image),
    };
    match arguments.verb {
        Verb::Ls => {
            let views: Vec<ImageView> = cache.list().iter().map(view).collect();
            context.output.answer(&views, || list(&views))?;
        }
        Verb::Prune { unused } => {
            let least = Duration::from_secs(u64::from(unused) * 24 * 3600);
            let removed = cache.prune(|image| image.unused >= least && !is_used(image))?;
            let views: Vec<ImageView> = removed.iter().map(view).collect();
            let freed = views.iter().map(|view| view.used_bytes).sum();
            context
                .output
                .answer(&views, || format!("removed {} images, {}", views.len(), ByteSize(freed)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the files of all cells' volumes.
fn files_in_use(context: &Context) -> BTreeSet<PathBuf> {
    let machines = context.root.machines().into_iter().filter(is_up);
    let files = |dir| CellStore::of(&dir).volumes().map(|(_, volume)| volume.file).collect::<Vec<_>>();
    machines.flat_map(files).collect()
}

fn list(views: &[ImageView]) -> String {
    let rows = views.iter().map(|view| {
        let unused = match view.unused_s {
            seconds if seconds < 3600 => format!("{} min", seconds / 60),
            seconds if seconds < 48 * 3600 => format!("{} h", seconds / 3600),
            seconds => format!("{} days", seconds / (24 * 3600)),
        };
        let digest: String = view.digest.chars().take(SHORT).collect();
        let in_use = if view.is_in_use { "yes" } else { "" };
        vec![digest, view.source.clone(), ByteSize(view.used_bytes).to_string(), unused, in_use.to_owned()]
    });
    table(&["DIGEST", "SOURCE", "USED", "UNUSED FOR", "IN USE"], rows)
}
