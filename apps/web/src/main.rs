//! The web server's image: arguments, and the source of its files.
//!
//! ```text
//! isola run -p 8080:80 web                                       the site in the image: ISOLA_WEB_SITE at its build
//! isola run -v site:/www:ro -p 8080:80 web -d /www               the files of a volume
//! isola run --hosted -p 9000:9000 files export DIRECTORY         a process of the host, and
//! isola run -p 8080:80 web -j 10.0.2.2:9000                      a cell that serves its exported files
//! ```
#![no_std]
#![no_main]

mod load;
mod options;
mod volume;

use isola::net;
use isola::prelude::*;
use isola_web::{Site, SiteBuilder, archive};
use options::{Options, Source};

isola::app!(main);

/// The number of connections per core that can wait for acceptance.
const BACKLOG: usize = 1024;

/// The site in the image.
static BUILT_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/site.tar"));

async fn main(arguments: Arguments) -> ExitCode {
    let options = match Options::parse(&arguments) {
        Ok(options) => options,
        Err(error) => {
            println!("web: {error}");
            return ExitCode::USAGE;
        }
    };
    match serve(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("web: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(options: Options) -> Result<(), String> {
    if let Source::Volume { path } = &options.source {
        return volume::serve(options.port, path).await.map_err(|error| error.to_string());
    }
    let site = load(&options.source).await?;
    let (files, bytes) = (site.file_count(), site.len_bytes());
    // The site exists until the cell ends.
    let site: &'static Site = Box::leak(Box::new(site));
    let listening =
        net::listen_with(options.port, BACKLOG, move |connection| isola_web::serve(connection, site));
    let _listening = listening.map_err(|error| error.to_string())?;
    let (port, cores) = (options.port, isola::core_count());
    println!("web: TCP port {port}, {cores} cores, {files} files of {} KiB", bytes.div_ceil(1 << 10));
    isola::stop_requested().await;
    Ok(())
}

async fn load(source: &Source) -> Result<Site, String> {
    let mut site = SiteBuilder::new(isola::entropy());
    match source {
        Source::Exported { at, root } => {
            load::add_exported(&mut site, *at, root).await.map_err(|error| error.to_string())?;
        }
        // Files of a volume are opened on demand instead.
        Source::BuiltIn | Source::Volume { .. } => {
            archive::add_all(&mut site, BUILT_IN).map_err(|error| error.to_string())?;
        }
    }
    Ok(site.build())
}
