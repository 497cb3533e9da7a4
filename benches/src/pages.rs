//! What is published: raw data beside `benches/README.md`, pictures of them, and the tables in it.

use crate::error::BenchError;
use crate::figure::Group;
use crate::linux::kernel::Kernel;
use crate::origin::{self, Age};
use crate::record::Record;
use crate::{host, pace, table};
use std::fs;
use std::path::{Path, PathBuf};

/// Puts a record into the folder of raw data, and its figures into the pages. `home` is the folder of this package.
///
/// # Errors
/// [`BenchError::HostBusy`] or [`BenchError::PaceLost`] of figures that are not to be published, [`BenchError::File`].
pub fn publish(home: &Path, record: &Record) -> Result<(), BenchError> {
    host::demand_quiet(record.setting.host_busy_percent.iter().copied())?;
    pace::demand_kept(record)?;
    record.save(&home.join("data"))?;
    write(home)
}

/// Writes all pages and pictures anew.
///
/// # Errors
/// [`BenchError::File`], [`BenchError::Data`], [`BenchError::NoHistory`].
pub fn write(home: &Path) -> Result<(), BenchError> {
    for (path, text) in texts(home)? {
        fs::write(&path, text).map_err(BenchError::file(&path))?;
    }
    Ok(())
}

/// Fails where a page or picture does not show what the raw data say.
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

/// The pages and pictures, and what they are to say.
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
