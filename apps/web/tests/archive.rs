//! Sites from tar archives.

use isola_web::archive::{self, ArchiveError};
use isola_web::date::UnixSeconds;
use isola_web::site::SiteEntry;
use isola_web::{Site, SiteBuilder, SiteError};

/// Returns an archive of these files.
fn pack(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mtime(784_111_777);
        header.set_size(content.len() as u64);
        // Writes the name directly, as the crate would reject some.
        let raw = header.as_old_mut();
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        archive.append(&header, *content).unwrap();
    }
    archive.into_inner().unwrap()
}

fn read(archive: Vec<u8>) -> Result<Site, ArchiveError> {
    let mut site = SiteBuilder::new(1);
    archive::add_all(&mut site, archive.leak())?;
    Ok(site.build())
}

#[test]
fn a_site_has_the_files_of_its_archive() {
    let long = vec![7; 100_000];
    let site = read(pack(&[("./index.html", b"<h1>"), ("a/b.txt", &long), ("./a/", b""), ("empty", b"")]));
    let site = site.unwrap();
    assert_eq!(site.file_count(), 3);
    let Some(SiteEntry::File(file)) = site.find(b"/a/b.txt") else { panic!("it is there") };
    assert_eq!((file.content()[..] == long, file.modified()), (true, Some(UnixSeconds(784_111_777))));
    assert!(matches!(site.find(b"/"), Some(SiteEntry::File(_))));
}

#[test]
fn invalid_archives_and_paths_out_of_the_site_are_rejected() {
    assert!(matches!(read(Vec::new()), Err(ArchiveError::Damaged(_))));
    assert!(matches!(read(b"no archive".to_vec()), Err(ArchiveError::Damaged(_))));
    let mut damaged = pack(&[("a", b"content")]);
    damaged[0] = b'b';
    assert!(matches!(read(damaged), Err(ArchiveError::Damaged(_))));
    let mut short = pack(&[("a", &[7; 5000])]);
    short.truncate(1024);
    assert!(matches!(read(short), Err(ArchiveError::Damaged(_))));
    for name in ["../a", "/etc/passwd", "a/../../b"] {
        assert!(matches!(read(pack(&[(name, b"")])), Err(ArchiveError::Site(SiteError::Name(_)))), "{name}");
    }
}

#[test]
fn names_in_extensions_of_the_format_are_rejected() {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::XHeader);
    let record = b"13 path=long\n";
    header.set_size(record.len() as u64);
    header.set_path("x").unwrap();
    header.set_cksum();
    archive.append(&header, &record[..]).unwrap();
    assert_eq!(read(archive.into_inner().unwrap()).unwrap_err(), ArchiveError::LongNames);
}
