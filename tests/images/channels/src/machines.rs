//! Two cells as machines of one application: calls, and files in the memory of the first one.

use isola::files::{FileKind, FileRefusal, Status};
use isola::iobuf::{Chain, IoBuf};
use isola::messenger::{
    self, EbbId, FirstMachine, FirstMachineListener, HandlerRegistration, JoinError, MachineId, Refusal,
    id_map,
};
use isola::prelude::*;
use isola_fs::{Answer, FILES, FileRequest};

const PORT: u16 = 9000;

/// Answers with the request.
const ECHO: EbbId = EbbId::of_path(module_path!(), "ECHO");

/// The bytes of the one file.
const FILE_BYTES: usize = 1_000_003;

fn byte_at(index: usize) -> u8 {
    (index * 7 % 251) as u8
}

/// Serves as the first machine, and home of the files, as long as the result lives.
pub async fn host() -> (FirstMachineListener, [HandlerRegistration; 3]) {
    let listener = messenger::host(PORT).expect("no other program has the port");
    let map = id_map::serve().expect("no other program serves the id map");
    let echo = messenger::serve(ECHO, async |call| Ok(call.request));
    let files = FILES.serve(|_, request| async move { Ok(answer(request)) }).await;
    let files = files.expect("this machine has the id map").expect("no other program serves files");
    (listener, [map, echo.expect("no other program serves the Ebb"), files])
}

fn answer(request: FileRequest) -> Answer {
    match request {
        FileRequest::Status { .. } => {
            Answer::Status(Status { kind: FileKind::File, len_bytes: FILE_BYTES as u64, modified_s: 0 })
        }
        FileRequest::Read { offset, len, .. } => {
            let end = FILE_BYTES.min(offset as usize + len as usize);
            let bytes: Vec<u8> = (offset as usize..end).map(byte_at).collect();
            Answer::Data(Chain::from(IoBuf::from(bytes)))
        }
        FileRequest::List { .. } | FileRequest::Write { .. } => Answer::Refused(FileRefusal::NotAllowed),
    }
}

/// Joins a first machine by its address or the name of its cell, and uses its services.
pub async fn join(first: &str) {
    let first = join_by(first).await;
    use_all().await;
    println!("channels: calls and files are right");
    drop(first);
}

/// Stays joined while the first machine ends and starts again.
pub async fn stay(first: &str) {
    let first = join_by(first).await;
    use_all().await;
    println!("channels: staying");
    messenger::disconnected().await;
    assert!(messenger::call(MachineId::FIRST, ECHO, Chain::new()).await.is_err());
    messenger::rejoin(first).await;
    use_all().await;
    println!("channels: it is back");
}

pub async fn join_by(first: &str) -> FirstMachine {
    let first: FirstMachine = first.parse().expect("an address or the name of a cell");
    if let FirstMachine::Address(_) = first {
        isola::net::wait_for_address().await;
    }
    let joined: Result<MachineId, JoinError> = messenger::join(first.clone()).await;
    joined.expect("the first machine can be joined");
    for (_, transport) in messenger::connected_machines().await {
        println!("channels: joined over {transport}");
    }
    first
}

/// Calls the first machine; returns its answer.
pub async fn echo(request: &[u8]) -> Chain {
    let request = Chain::from(IoBuf::copy_from_slice(request));
    messenger::call(MachineId::FIRST, ECHO, request).await.expect("the first machine answers")
}

async fn use_all() {
    let request: Vec<u8> = (0..messenger::MAX_PAYLOAD).map(byte_at).collect();
    assert!(echo(&request).await.to_vec() == request);
    let refused =
        messenger::call(MachineId::FIRST, EbbId::of_path(module_path!(), "none"), Chain::new()).await;
    assert_eq!(refused, Err(messenger::CallError::Refused(Refusal::NoSuchEbb)));
    let len = isola::files::status("file").await.expect("there is a file").len_bytes as usize;
    let mut file = Vec::new();
    while file.len() < len {
        let more = isola::files::read("file", file.len() as u64, isola::files::MAX_READ).await;
        more.expect("the file can be read").parts().for_each(|part| file.extend_from_slice(part));
    }
    assert!(file.len() == FILE_BYTES && (0..).zip(&file).all(|(index, byte)| *byte == byte_at(index)));
}
