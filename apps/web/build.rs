//! Links the binary as an image, and packs the site that it contains.
//!
//! `ISOLA_WEB_SITE` names the site: a directory, or an archive that `tar --format=ustar` created. The default is
//! `site/`.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    isola_image_link::emit();
    println!("cargo::rerun-if-env-changed=ISOLA_WEB_SITE");
    let site = env::var_os("ISOLA_WEB_SITE").map_or_else(|| PathBuf::from("site"), PathBuf::from);
    println!("cargo::rerun-if-changed={}", site.display());
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo says where to write"))?;
    let packed = Path::new(&out).join("site.tar");
    if site.is_dir() {
        let mut archive = tar::Builder::new(BufWriter::new(File::create(packed)?));
        pack(&mut archive, &site, Path::new(""))?;
        archive.finish()
    } else {
        fs::copy(&site, packed).map(|_| ())
    }
}

/// Packs the files of a directory, sorted by name.
fn pack(archive: &mut tar::Builder<impl io::Write>, folder: &Path, name: &Path) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        let metadata = fs::metadata(&path)?;
        if metadata.is_dir() {
            pack(archive, &path, &name)?;
        } else if metadata.is_file() {
            let mut header = tar::Header::new_ustar();
            header.set_metadata(&metadata);
            archive.append_data(&mut header, name, File::open(&path)?)?;
        }
    }
    Ok(())
}
