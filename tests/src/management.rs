//! A minimal client of the management protocol: sends a request and waits for the response.

use isola_abi::frame::{Decoder, MAX_PART_BYTES, encode};
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{
    CellInfo, CellSpec, CorePlacement, JournalEntry, MachineInfo, ManagementError, NetworkSpec, Request,
    RequestBody, Response, ResponseBody, RestartPolicy,
};
use isola_abi::network_service::NetworkService;
use isola_abi::query::{AnswerRecord, Connection, FrameFilter, Line, Query, QueryState, Records};
use isola_abi::size::ByteSize;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The result of a request.
pub type Answer = Result<ResponseBody, ManagementError>;

/// The longest wait for a response. Emulated machines on a busy host are slow.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to a supervisor.
pub struct Client {
    stream: UnixStream,
    decoder: Decoder,
    received: VecDeque<Response>,
    sequence: u32,
}

impl Client {
    /// Connects to the console at `path`, and waits until a supervisor answers there.
    pub fn connect(path: &Path) -> Self {
        let deadline = Instant::now() + TIMEOUT;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "no console at {}: {error}", path.display()),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut client = Self { stream, decoder: Decoder::new(), received: VecDeque::new(), sequence: 0 };
        client.hello();
        client
    }

    /// Sends Hello until the supervisor answers. Bytes sent before it runs may be lost.
    pub fn hello(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let sequence = self.send(RequestBody::Hello { version: isola_abi::VERSION });
            if let Some(response) = self.wait(sequence, Duration::from_secs(5)) {
                assert_eq!(response.body, Ok(ResponseBody::Hello { version: isola_abi::VERSION }));
                return;
            }
            assert!(Instant::now() < deadline, "the supervisor does not answer");
        }
    }

    /// Sends a request; returns its sequence number.
    pub fn send(&mut self, body: RequestBody) -> u32 {
        self.sequence += 1;
        let frame = encode(&Request { sequence: self.sequence, body }).unwrap();
        self.send_bytes(&frame);
        self.sequence
    }

    /// Sends raw bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a request `count` times at once; ignores the responses.
    pub fn flood(&mut self, body: RequestBody, count: usize) {
        let frame = encode(&Request { sequence: u32::MAX, body }).unwrap();
        self.send_bytes(&frame.repeat(count));
    }

    /// Waits for the response with this sequence number, at most `limit`. Stores other responses for later calls.
    pub fn wait(&mut self, sequence: u32, limit: Duration) -> Option<Response> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(index) = self.received.iter().position(|response| response.sequence == sequence) {
                return self.received.remove(index);
            }
            let mut buffer = [0; 65536];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(len) => {
                    let mut bytes = &buffer[..len];
                    while let Some(response) = self.decoder.next::<Response>(&mut bytes) {
                        // The stream may begin within a response to an earlier client.
                        self.received.extend(response);
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("the console has failed: {error}"),
            }
            if Instant::now() >= deadline {
                return None;
            }
        }
    }

    /// Sends a request and returns the response.
    pub fn ask(&mut self, body: RequestBody) -> Answer {
        let what = format!("{body:?}").chars().take(80).collect::<String>();
        let sequence = self.send(body);
        self.wait(sequence, TIMEOUT).unwrap_or_else(|| panic!("no answer to {what}")).body
    }

    /// Queries a running cell for its TCP connections.
    pub fn connections(&mut self, name: &str) -> Vec<Connection> {
        let query = Query::Connections { filter: FrameFilter::default(), most: 1_000 };
        let body = RequestBody::Ask { name: name.to_owned(), line: Line::Facts, query: query.encode() };
        let Ok(ResponseBody::QueryNumber { number }) = self.ask(body) else {
            panic!("{name} cannot be asked")
        };
        let (mut records, mut found) = (Records::default(), Vec::new());
        let (mut cores, mut done) = (None, 0);
        let deadline = Instant::now() + TIMEOUT;
        while cores != Some(done) {
            assert!(Instant::now() < deadline, "{name} has answered for {done} of {cores:?} cores");
            let body = RequestBody::Answers {
                name: name.to_owned(),
                line: Line::Facts,
                number,
                from: records.end(),
                max_bytes: MAX_PART_BYTES as u32,
            };
            let Ok(ResponseBody::Answers(piece)) = self.ask(body) else { panic!("{name} does not answer") };
            assert_ne!(piece.state, QueryState::Replaced, "another query has replaced this one");
            records.add(&piece).expect("records in order");
            while let Some(record) = records.next_record().expect("a whole record") {
                match AnswerRecord::decode(record).expect("a fact") {
                    AnswerRecord::Begin { cores: count } => cores = Some(count),
                    AnswerRecord::Connection(connection) => found.push(*connection),
                    AnswerRecord::Done { .. } => done += 1,
                    other => panic!("not of this answer: {other:?}"),
                }
            }
        }
        found
    }

    /// Returns the machine's state.
    pub fn machine(&mut self) -> MachineInfo {
        match self.ask(RequestBody::Machine) {
            Ok(ResponseBody::Machine(machine)) => machine,
            other => panic!("{other:?}"),
        }
    }

    /// Uploads an image.
    pub fn upload(&mut self, image: &[u8]) {
        let done = Ok(ResponseBody::Done);
        assert_eq!(self.ask(RequestBody::ImageBegin { len_bytes: image.len() as u64 }), done);
        for (number, chunk) in image.chunks(MAX_PART_BYTES).enumerate() {
            let offset = (number * MAX_PART_BYTES) as u64;
            assert_eq!(self.ask(RequestBody::ImageChunk { offset, bytes: chunk.to_vec() }), done);
        }
    }

    /// Creates a cell from an image.
    pub fn create(&mut self, image: &[u8], spec: CellSpec) -> CellInfo {
        self.upload(image);
        cell(self.ask(RequestBody::Create(CellSpec { image: digest(image), ..spec }.into())))
    }

    /// Creates an ended cell again, from its stored image.
    pub fn recreate(&mut self, name: &str) -> CellInfo {
        cell(self.ask(RequestBody::Recreate { name: name.into() }))
    }

    /// Starts a cell.
    pub fn start(&mut self, name: &str) -> CellInfo {
        cell(self.ask(RequestBody::Start { name: name.into() }))
    }

    /// Stops a cell, by force after `timeout_ms`.
    pub fn stop(&mut self, name: &str, timeout_ms: u32) -> CellInfo {
        cell(self.ask(RequestBody::Stop { name: name.into(), timeout_ms }))
    }

    /// Destroys a cell.
    pub fn destroy(&mut self, name: &str) {
        assert_eq!(self.ask(RequestBody::Destroy { name: name.into() }), Ok(ResponseBody::Done));
    }

    /// Returns the state of a cell.
    pub fn inspect(&mut self, name: &str) -> CellInfo {
        cell(self.ask(RequestBody::Inspect { name: name.into() }))
    }

    /// Returns a cell's console output.
    pub fn logs(&mut self, name: &str) -> String {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let body = RequestBody::Logs { name: name.into(), from, max_bytes: MAX_PART_BYTES as u32 };
            match self.ask(body) {
                Ok(ResponseBody::Logs(piece)) if piece.bytes.is_empty() => break,
                Ok(ResponseBody::Logs(piece)) => {
                    // The supervisor may have dropped output before the piece.
                    from = piece.from + piece.bytes.len() as u64;
                    all.extend(piece.bytes);
                }
                other => panic!("{other:?}"),
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Returns the journal from entry number `from`.
    pub fn events(&mut self, from: u64) -> Vec<JournalEntry> {
        match self.ask(RequestBody::Events { from, max_entries: u32::MAX }) {
            Ok(ResponseBody::Events(entries)) => entries,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a cell's state satisfies a predicate.
    pub fn wait_for(&mut self, name: &str, what: impl Fn(&CellInfo) -> bool) -> CellInfo {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let info = self.inspect(name);
            if what(&info) {
                return info;
            }
            assert!(Instant::now() < deadline, "the cell stays {info:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a cell has exited or crashed or was killed.
    pub fn wait_for_end(&mut self, name: &str) -> CellInfo {
        self.wait_for(name, |info| info.state.has_ended())
    }

    /// Waits until all free memory is scrubbed.
    pub fn wait_for_scrubbing(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.machine().memory_dirty.0 > 0 {
            assert!(Instant::now() < deadline, "scrubbing does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns the cell in a response.
pub fn cell(answer: Answer) -> CellInfo {
    match answer {
        Ok(ResponseBody::Cell(info)) => *info,
        other => panic!("{other:?}"),
    }
}

/// Returns the digest of an image.
pub fn digest(image: &[u8]) -> ImageDigest {
    ImageDigest(Sha256::digest(image).into())
}

/// Returns the specification of a cell of the image `cell-probe`, without network. The `arguments` select the
/// behaviour.
pub fn spec(name: &str, cores: u32, mib: u64, arguments: &[&str]) -> CellSpec {
    CellSpec {
        name: name.into(),
        image_name: "cell-probe".into(),
        image: digest(crate::supervised::probe()),
        requirement: Box::default(),
        cores,
        placement: CorePlacement::default(),
        memory: ByteSize(mib << 20),
        memory_max: None,
        arguments: arguments.iter().map(|&argument| argument.into()).collect(),
        network: NetworkSpec::None,
        restart: RestartPolicy::No,
        watchdog_ms: 0,
        lending: Default::default(),
        text: Default::default(),
        grid: Default::default(),
        volumes: Vec::new(),
        accept: Vec::new(),
        loop_with: Vec::new(),
        served_volumes: Vec::new(),
        network_service: NetworkService::None,
    }
}
