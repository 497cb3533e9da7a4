//! The log: lines on the serial port, each with the time since the supervisor's first instruction.

use isola_machine::serial_line;
use isola_supervisor_machine::Time;
use log::{LevelFilter, Log, Metadata, Record};
use spin::Once;

/// A logger that writes to the serial port.
struct Lines(Time);

static LINES: Once<Lines> = Once::new();

/// Installs the logger.
pub fn begin(time: Time) {
    if log::set_logger(LINES.call_once(|| Lines(time))).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let now = self.0.now_ns();
            let (s, us) = (now / 1_000_000_000, now % 1_000_000_000 / 1000);
            serial_line!("[{s:5}.{us:06}] {:5} {}", record.level(), record.args());
        }
    }

    fn flush(&self) {}
}
