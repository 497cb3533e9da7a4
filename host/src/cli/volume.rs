//! `isola volume`: file systems that keep their files across cells and machines.

use super::{Context, Failure, complete};
use crate::machine::cells::CellStore;
use crate::machine::is_up;
use crate::output::{Format, table};
use crate::volume::VolumeName;
use crate::volume::parts::PartSpec;
use crate::volume::store::{Volume, VolumeStore};
use clap::{ArgGroup, Args, Subcommand};
use isola_abi::size::ByteSize;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Creates, lists and removes volumes: file systems that keep their files across cells and machines
#[derive(Debug, Args)]
#[command(after_help = "\
A volume is a file of this host with an ext4 file system. `isola run -v VOLUME:PATH` mounts it in a cell; one cell \
can have it for writing, or any number for reading (`-v VOLUME:PATH:ro`). A file outside of the volume folder is named by \
its path, with a `/` in it: `-v ./disk.img:/data`. Other programs, such as mount and e2fsck, can use the file while no \
cell has it.

Examples:
  isola volume create data --size 1G
  isola volume create site --size 64M --from ./public
  isola run -d -v site:/www:ro -p 8080:80 web
  isola volume create pool --part web=64M --part kv=256M
  isola volume ls
  isola volume rm data")]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Creates a volume with an empty file system, or with the files of a folder
    #[command(group = ArgGroup::new("extent").required(true).args(["size", "part"]))]
    Create {
        /// The name
        name: VolumeName,
        /// The length; the file occupies only what is in use
        #[arg(short, long)]
        size: Option<ByteSize>,
        /// Divides it into volumes for a service cell, each with a file system: NAME=SIZE, as in web=64M
        #[arg(long, value_name = "PART", conflicts_with = "from")]
        part: Vec<PartSpec>,
        /// The folder whose files it gets
        #[arg(long, value_name = "FOLDER")]
        from: Option<PathBuf>,
    },
    /// Lists the volumes
    Ls,
    /// Removes volumes with all their files
    Rm {
        /// The volumes
        #[arg(required = true, add = complete::volumes())]
        names: Vec<VolumeName>,
    },
}

/// A volume: the JSON form.
#[derive(Serialize)]
struct VolumeView {
    /// The name.
    name: String,
    /// The file.
    file: PathBuf,
    /// The length.
    len_bytes: u64,
    /// The bytes that the file occupies on this host.
    used_bytes: u64,
    /// The cells that have it, as `MACHINE/CELL`.
    cells: Vec<String>,
}

pub(super) fn volume(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let store = VolumeStore::from_environment()?;
    match &arguments.verb {
        Verb::Create { name, size, part, from } => {
            let volume = match size {
                Some(size) => store.create(name, *size, from.as_deref())?,
                None => store.create_parts(name, part)?,
            };
            context.output.answer(&view(context, &volume), || volume.name.to_string())?;
        }
        Verb::Ls => {
            let views: Vec<VolumeView> = store.list().iter().map(|volume| view(context, volume)).collect();
            context.output.answer(&views, || list(context, &views))?;
        }
        Verb::Rm { names } => {
            let mut removed = Vec::new();
            let mut failed = None;
            for name in names {
                match remove(context, &store, name) {
                    Ok(()) => removed.push(name.to_string()),
                    Err(failure) => failed = Some(failure.report(&context.output)),
                }
            }
            if !removed.is_empty() || context.output.format == Format::Json {
                context.output.answer(&removed, || removed.join("\n"))?;
            }
            return Ok(failed.unwrap_or(ExitCode::SUCCESS));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes a volume that no cell has.
fn remove(context: &Context, store: &VolumeStore, name: &VolumeName) -> Result<(), Failure> {
    let cells = view(context, &store.find(name)?).cells;
    if !cells.is_empty() {
        let text = format!(
            "volume {name} belongs to a cell ({}): remove the cell first, with `isola rm`",
            cells.join(", ")
        );
        return Err(Failure::new(super::failure::REFUSED, text));
    }
    Ok(store.remove(name)?)
}

fn view(context: &Context, volume: &Volume) -> VolumeView {
    let file = volume.file.canonicalize().unwrap_or_else(|_| volume.file.clone());
    let machines = context.root.machines().into_iter().filter(is_up);
    let cells = machines.flat_map(|dir| {
        let store = CellStore::of(&dir);
        let of_file = store.volumes().filter(|(_, recorded)| recorded.file == file);
        of_file.map(|(cell, _)| format!("{}/{cell}", dir.name)).collect::<Vec<_>>()
    });
    VolumeView {
        name: volume.name.to_string(),
        cells: cells.collect(),
        file,
        len_bytes: volume.len_bytes,
        used_bytes: volume.used_bytes,
    }
}

fn list(context: &Context, views: &[VolumeView]) -> String {
    if context.output.verbosity == crate::output::Verbosity::Quiet {
        return views.iter().map(|view| view.name.clone()).collect::<Vec<_>>().join("\n");
    }
    let size = |bytes| ByteSize(bytes).to_string();
    let rows = views.iter().map(|view| {
        vec![view.name.clone(), size(view.len_bytes), size(view.used_bytes), view.cells.join(", ")]
    });
    table(&["NAME", "SIZE", "USED", "CELLS"], rows)
}
