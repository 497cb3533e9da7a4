//! Publication: raw data beside `benches/README.md`, plots of them, and the tables in the README files.

use crate::error::BenchError;
use crate::figure::Group;
use crate::linux::kernel::Kernel;
use crate::origin::{self, Age};
use crate::record::Record;
use crate::{host, pace, table};
use std::fs;
use std::path::{Path, PathBuf};

/// Saves a record in the folder of raw data, and rewrites the pages. `home` is the folder of this package.
///
/// # Errors
/// [`BenchError::HostBusy`] or [`BenchError::PaceLost`] for figures that must not be published, and as [`write()`].
pub fn publish(home: &Path, record: &Record) -> Result<(), BenchError> {
    host::demand_quiet(record.setting.host_busy_percent.iter().copied())?;
    pace::demand_kept(record)?;
    record.save(&home.join("data"))?;
    write(home)
}

/// Rewrites all pages and plots.
///
/// # Errors
/// [`BenchError::File`], [`BenchError::Data`], [`BenchError::NoHistory`].
pub fn write(home: &Path) -> Result<(), BenchError> {
    for (path, text) in texts(home)? {
        fs::write(&path, text).map_err(BenchError::file(&path))?;
    }
    Ok(())
}

/// Fails if a page or plot differs from the raw data.
///
/// # Errors
/// [`BenchError::Tables`] with its name, and as [`write()`].
pub fn check(home: &Path) -> Result<(), BenchError> {
    for (path, text) in texts(home)? {
        if fs::read_to_string(&path).map_err(BenchError::file(&path))? != text {
            return Err(BenchError::Tables(
                path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            ));
        }
    }
    Ok(())
}

/// Returns the paths of pages and plots, and their required contents.
fn texts(home: &Path) -> Result<Vec<(PathBuf, String)>, BenchError> {
    let data = home.join("data");
    let mut records: Vec<(Record, Age)> = Vec::new();
    for (group, kernel) in Group::ALL.into_iter().flat_map(|group| Kernel::ALL.map(|kernel| (group, kernel)))
    {
        if let Some(record) = Record::load(&data, group, kernel)? {
            let age = origin::age(&record)?;
            records.push((record, age));
        }
    }
    let mut texts = Vec::new();
    for (record, _) in &records {
        if let Some(picture) = table::picture(record) {
            texts.push((data.join(format!("{}.svg", record.file_stem())), picture));
        }
    }
    let readme = home.join("README.md");
    let text = fs::read_to_string(&readme).map_err(BenchError::file(&readme))?;
    let text =
        table::publish(&text, &records).ok_or_else(|| BenchError::Tables("benches/README.md".into()))?;
    texts.push((readme, text));
    let root = home.join("../README.md");
    let text = fs::read_to_string(&root).map_err(BenchError::file(&root))?;
    let text = table::publish_aims(&text, &records).ok_or_else(|| BenchError::Tables("README.md".into()))?;
    texts.push((root, text));
    Ok(texts)
}
