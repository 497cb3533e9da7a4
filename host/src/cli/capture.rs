//! `isola capture`: the frames that a cell receives and sends.
//!
//! The cell copies frames into a ring, which the command reads as a [`Stream`]. Frames for which the ring had no room are counted and reported.

use super::interrupt::Interrupts;
use super::stream::{Progress, Stream};
use super::{Context, Failure, complete, failure, output_file};
use crate::capture::CapturedFrame;
use crate::capture::file::CaptureFile;
use crate::capture::line::line;
use crate::output::{Format, human};
use clap::Args;
use isola_abi::query::{CaptureSpec, Direction, FrameFilter, Query};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Captures the frames that a running cell receives and sends
#[derive(Debug, Args)]
#[command(after_help = "\
Prints one line per frame, or writes a pcapng file for tcpdump and Wireshark, until ^C. The cell continues to serve; it \
copies each frame, and drops and counts copies that are not read in time: a filter or --snaplen makes that rarer. Frames \
that the device segments or coalesces are captured as the cell sees them: long. Checksums that the cell leaves to its \
device are filled in. With a filter, only frames of TCP and UDP are captured, and ICMP errors about them.

Examples:
  isola capture kv --count 10
  isola capture kv -w kv.pcapng --port 11211 --duration 5
  isola capture kv -w - | tcpdump -n -r -")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// Writes a pcapng file; `-` is the standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Ends after this number of frames
    #[arg(short, long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Captures at most this number of bytes of each frame
    #[arg(short, long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(14..))]
    snaplen: u32,
    /// Ends after this number of seconds
    #[arg(short, long, value_name = "SECONDS")]
    duration: Option<u64>,
    /// Only frames with this TCP or UDP port, on either side
    #[arg(long)]
    port: Option<u16>,
    /// Only frames with this address, on either side
    #[arg(long, value_name = "IP")]
    host: Option<IpAddr>,
}

pub(super) fn capture(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let to_output = arguments.write.as_deref() == Some(Path::new("-"));
    if to_output && io::stdout().is_terminal() {
        let what = "a terminal cannot show a capture file: write it to a file or a pipe, or leave -w out";
        return Err(Failure::new(failure::USAGE, what));
    }
    let interrupts = Interrupts::count()?;
    let filter = FrameFilter { port: arguments.port, host: arguments.host };
    let mut session =
        Session::begin(context, arguments, CaptureSpec { filter, snap_len: arguments.snaplen })?;
    let outcome = Sink::open(context, arguments).and_then(|mut sink| session.run(&mut sink, &interrupts));
    session.stream.end();
    outcome?;
    let mut text = format!("{} frames captured", human::count(session.captured));
    if session.stream.lost() > 0 {
        text.push_str(&format!(
            ", {} lost for lack of room: use --snaplen, --port or --host",
            human::count(session.stream.lost())
        ));
    }
    context.output.note(&text);
    Ok(ExitCode::SUCCESS)
}

/// A running capture.
struct Session<'a> {
    arguments: &'a Arguments,
    stream: Stream<'a>,
    captured: u64,
}

/// Whether the capture has the requested number of frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CountLimit {
    Reached,
    NotReached,
}

impl<'a> Session<'a> {
    fn begin(context: &'a Context, arguments: &'a Arguments, spec: CaptureSpec) -> Result<Self, Failure> {
        let stream = Stream::begin(context, &arguments.cell, &Query::Capture(spec), "capture")?;
        Ok(Self { arguments, stream, captured: 0 })
    }

    fn run(&mut self, sink: &mut Sink, interrupts: &Interrupts) -> Result<(), Failure> {
        let limit = self.arguments.duration.map(Duration::from_secs);
        loop {
            // Frames that were read before an error are passed on as well.
            let turn = self.stream.turn();
            let count_limit = self.pass_on(sink)?;
            let turn = turn?;
            let is_late = limit.is_some_and(|limit| self.stream.age() >= limit);
            if turn == Progress::Ended || count_limit == CountLimit::Reached {
                return Ok(());
            }
            if interrupts.so_far() > 0 || is_late {
                // One last turn, for the frames until now.
                self.stream.turn()?;
                self.pass_on(sink)?;
                return Ok(());
            }
            self.stream.pause()?;
        }
    }

    /// Passes the frames to the sink, without the machine's lock: the sink may block on its reader.
    fn pass_on(&mut self, sink: &mut Sink) -> Result<CountLimit, Failure> {
        for (record, left_out) in self.stream.take() {
            sink.add(&CapturedFrame::decode(&record)?, left_out)?;
            self.captured += 1;
            if self.arguments.count == Some(self.captured) {
                sink.flush()?;
                return Ok(CountLimit::Reached);
            }
        }
        sink.flush()?;
        Ok(CountLimit::NotReached)
    }
}

/// The destination of frames.
enum Sink {
    File { file: CaptureFile, to: Box<dyn Write> },
    Lines(Format),
}

/// A captured frame: the JSON form.
#[derive(Serialize)]
struct FrameView<'a> {
    /// The time.
    time: String,
    /// `in` or `out`.
    direction: &'static str,
    /// The length in bytes.
    bytes: u32,
    /// The number of frames lost before it.
    left_out: u64,
    /// A description of its headers.
    summary: &'a str,
}

impl Sink {
    fn open(context: &Context, arguments: &Arguments) -> Result<Self, Failure> {
        let Some(path) = &arguments.write else { return Ok(Self::Lines(context.output.format)) };
        let to = output_file::open(path)?;
        let mut sink = Self::File { file: CaptureFile::begin(&arguments.cell, arguments.snaplen)?, to };
        sink.flush()?;
        Ok(sink)
    }

    fn add(&mut self, frame: &CapturedFrame, left_out: u64) -> io::Result<()> {
        match self {
            Self::File { file, .. } => file.add(frame, left_out),
            Self::Lines(format) => {
                let summary = line(frame);
                let text = match format {
                    Format::Table => format!("{} {summary}", human::local_time(frame.head.unix_ns)),
                    Format::Json => serde_json::to_string(&FrameView {
                        time: human::rfc3339(frame.head.unix_ns),
                        direction: match frame.head.direction {
                            Direction::In => "in",
                            Direction::Out => "out",
                        },
                        bytes: frame.head.len_bytes,
                        left_out,
                        summary: &summary,
                    })?,
                };
                writeln!(io::stdout(), "{text}")
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File { file, to } => {
                to.write_all(&file.take())?;
                to.flush()
            }
            Self::Lines(_) => io::stdout().flush(),
        }
    }
}
