//! Serves files of the host over HTTP from a cell without files of its own (EbbRT 4.3's off-load).
//!
//! Both machines of the application run this program:
//!
//! ```text
//! isola run --hosted -p 9000:9000 files export DIRECTORY          the hosted process, which has the files
//! isola run -p 8080:80 files serve 10.0.2.2:9000                  a native cell, which serves them
//! ```
#![no_std]
#![no_main]

use core::net::SocketAddr;
use isola::events::spawn_task;
use isola::files::{Access, FileError, FileKind, FileRefusal, MAX_READ};
use isola::iobuf::{Chain, IoBuf};
use isola::messenger;
use isola::net::{self, TcpStream};
use isola::prelude::*;
use isola_files::{Body, Method, Request, RequestError, head};

isola::app!(main);

const USAGE: &str =
    "usage: files export DIRECTORY [PORT]        makes a directory of this process's host available
       files serve ADDRESS:PORT [HTTP-PORT]    serves the files of whoever exports them at that address";

/// The default port at which an export accepts machines.
const EXPORT_PORT: u16 = 9000;

const HTTP_PORT: u16 = 80;

/// The number of connections per core that can wait for acceptance.
const BACKLOG: usize = 128;

async fn main(arguments: Arguments) -> ExitCode {
    let words = [arguments.get(0), arguments.get(1), arguments.get(2), arguments.get(3)];
    let port = |text: Option<&str>, default| text.map_or(Some(default), |text| text.parse().ok());
    let outcome = match words {
        [Some("export"), Some(directory), text, None] => match port(text, EXPORT_PORT) {
            Some(port) => export(directory, port).await,
            None => return usage(),
        },
        [Some("serve"), Some(first), text, None] => match (first.parse(), port(text, HTTP_PORT)) {
            (Ok(first), Some(port)) => serve(first, port).await,
            _ => return usage(),
        },
        _ => return usage(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("files: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    println!("{USAGE}");
    ExitCode::USAGE
}

async fn export(directory: &str, port: u16) -> Result<(), String> {
    let _listening = messenger::host(port).map_err(|error| error.to_string())?;
    let _map = messenger::id_map::serve().map_err(|error| error.to_string())?;
    let _files = isola::files::export(directory, Access::ReadOnly).await?;
    println!("files: {directory} is exported at port {port}");
    isola::stop_requested().await;
    Ok(())
}

async fn serve(first: SocketAddr, port: u16) -> Result<(), String> {
    net::wait_for_address().await;
    let number = messenger::join(first).await.map_err(|error| error.to_string())?;
    let _listening = net::listen(port, BACKLOG, answer).map_err(|error| error.to_string())?;
    println!("files: machine {}, TCP port {port}", number.number());
    let _joined = spawn_task(stay_joined(first)).cancel_on_drop();
    isola::stop_requested().await;
    Ok(())
}

/// Rejoins whenever the exporting process has disconnected and is back. Requests fail meanwhile.
async fn stay_joined(first: SocketAddr) {
    loop {
        messenger::disconnected().await;
        println!("files: the export at {first} is gone");
        messenger::rejoin(first).await;
        println!("files: the export at {first} is back");
    }
}

/// Answers one request, and closes the connection.
async fn answer(mut stream: TcpStream) {
    let mut received = Chain::new();
    let request = loop {
        match Request::parse(&received.to_vec()) {
            Ok(Some(request)) => break Ok(request),
            Ok(None) => match stream.read().await {
                Ok(Some(more)) => received.append(more),
                _ => return,
            },
            Err(rejected) => break Err(rejected),
        }
    };
    // An error means that the client has gone, so it gets no answer.
    let _ = match request {
        Ok(request) => respond(&mut stream, &request).await,
        Err(RequestError::Method) => {
            respond_text(&mut stream, "405 Method Not Allowed", "GET and HEAD alone\n").await
        }
        Err(RequestError::TooLong) => {
            respond_text(&mut stream, "431 Request Header Fields Too Large", "too long\n").await
        }
        Err(RequestError::Malformed) => respond_text(&mut stream, "400 Bad Request", "no request\n").await,
    };
    stream.shutdown();
}

type SendResult = Result<(), net::StreamError>;

async fn respond(stream: &mut TcpStream, request: &Request) -> SendResult {
    let path = request.path.as_str();
    let found = match isola::files::status(path).await {
        Ok(found) => found,
        Err(error) => return refuse(stream, &error).await,
    };
    match (found.kind, request.method) {
        (FileKind::File, Method::Head) => send(stream, head("200 OK", Body::File(found.len_bytes))).await,
        (FileKind::File, Method::Get) => send_file(stream, path, found.len_bytes).await,
        (FileKind::Directory, _) => match isola::files::list(path).await {
            Ok(entries) => {
                let mark = |kind| if kind == FileKind::Directory { "/" } else { "" };
                let lines = entries.iter().map(|entry| format!("{}{}\n", entry.name, mark(entry.kind)));
                respond_text(stream, "200 OK", &lines.collect::<String>()).await
            }
            Err(error) => refuse(stream, &error).await,
        },
        (FileKind::Other, _) => refuse(stream, &FileError::Refused(FileRefusal::NotAFile)).await,
    }
}

/// Sends a file in the buffers in which its home sent the data.
async fn send_file(stream: &mut TcpStream, path: &str, len_bytes: u64) -> SendResult {
    send(stream, head("200 OK", Body::File(len_bytes))).await?;
    let mut sent = 0;
    while sent < len_bytes {
        let wanted = (len_bytes - sent).min(MAX_READ as u64) as usize;
        match isola::files::read(path, sent, wanted).await {
            Ok(data) if !data.is_empty() => {
                sent += data.len() as u64;
                stream.write(data).await?;
            }
            // The file has become shorter, or its home is gone. The client detects the missing bytes by the content
            // length.
            _ => return Err(net::StreamError::Closed),
        }
    }
    Ok(())
}

async fn refuse(stream: &mut TcpStream, error: &FileError) -> SendResult {
    let status = match error {
        FileError::Refused(FileRefusal::NotFound | FileRefusal::NotADirectory) => "404 Not Found",
        FileError::Refused(FileRefusal::NotAllowed | FileRefusal::NotAFile | FileRefusal::ReadOnly) => {
            "403 Forbidden"
        }
        FileError::Refused(FileRefusal::Host | FileRefusal::TooLarge) => "500 Internal Server Error",
        FileError::Ask(_) => "502 Bad Gateway",
    };
    respond_text(stream, status, &format!("{error}\n")).await
}

async fn respond_text(stream: &mut TcpStream, status: &str, text: &str) -> SendResult {
    send(stream, head(status, Body::Text(text.len()))).await?;
    send(stream, text.to_string()).await
}

async fn send(stream: &mut TcpStream, text: String) -> SendResult {
    stream.write(Chain::from(IoBuf::from(text.into_bytes()))).await
}
