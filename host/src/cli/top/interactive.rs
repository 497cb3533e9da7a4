//! The interactive screen: the terminal, the thread that takes samples, and the loop of keys.
//!
//! ```text
//!   thread of samples --- samples ---> loop of keys ---> Screen ---> terminal
//!                     <-- SampleSpec -----
//! ```
//!
//! A sample can take seconds, if another command holds the machine or a cell does not answer. Keys have effect meanwhile.

use super::draw::draw;
use super::sample::{Sample, SampleSpec, Source};
use super::screen::{Screen, Step};
use super::{Arguments, GLANCE};
use crate::cli::interrupt::Interrupts;
use crate::cli::{Context, Failure};
use crate::machine::state::StateRoot;
use crate::output::charset::Charset;
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::panic;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The shortest time between two samples: a view that was opened gets its first soon, but no meaningless rates.
const SHORTEST: Duration = Duration::from_millis(200);

/// Shows the interactive screen until its user ends it.
pub(super) fn run(
    context: &Context,
    arguments: &Arguments,
    interrupts: &Interrupts,
) -> Result<ExitCode, Failure> {
    // Without a notice, since it would disturb the screen.
    let mut source = Source::new(StateRoot::from_environment()?, context.dir());
    let wanted = arguments.wanted();
    let interval = arguments.interval.0;
    let mut screen = Screen::new(context.machine.as_str(), &wanted, interval, Charset::of_locale());
    // An error of the first sample is printed as that of any command.
    screen.update(source.sample(&wanted)?);
    let sampler = Sampler::start(move |wanted| source.sample(wanted), wanted, interval);
    let mut terminal = ScreenTerminal::enter()?;
    end_with_terminal();
    loop {
        terminal.0.draw(|frame| draw(frame, &screen))?;
        let mut is_changed = false;
        while !is_changed {
            if interrupts.so_far() > 0 {
                return Ok(ExitCode::SUCCESS);
            }
            if event::poll(GLANCE)? {
                is_changed = true;
                let Event::Key(key) = event::read()? else { continue };
                match screen.key(key) {
                    _ if key.kind == KeyEventKind::Release => {}
                    Step::Draw => {}
                    Step::Sample(wanted) => sampler.want(wanted),
                    Step::End => return Ok(ExitCode::SUCCESS),
                }
            }
            while let Some(sample) = sampler.next() {
                is_changed = true;
                match sample {
                    Ok(sample) => screen.update(sample),
                    Err(error) => screen.error = Some(error),
                }
            }
        }
    }
}

/// Ends the process when the other end of the terminal is closed. A process gets a signal for that only from its
/// controlling terminal, and crossterm would read the end of the input in an endless loop.
fn end_with_terminal() {
    thread::spawn(|| {
        let input = io::stdin();
        // A hang-up is reported without being asked for.
        let mut hang_up = [PollFd::new(&input, PollFlags::empty())];
        while rustix::event::poll(&mut hang_up, None).is_err() {}
        std::process::exit(0);
    });
}

/// A terminal in raw mode that shows its other screen. Dropping it restores the terminal, as a panic does.
struct ScreenTerminal(DefaultTerminal);

impl ScreenTerminal {
    fn enter() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        // The hook that ratatui sets does not show the cursor again, and a panic drops nothing.
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |information| {
            let _ = execute!(io::stdout(), Show);
            next(information);
        }));
        Ok(Self(terminal))
    }
}

impl Drop for ScreenTerminal {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        ratatui::restore();
    }
}

/// The thread that takes samples.
struct Sampler {
    wanted: Sender<SampleSpec>,
    samples: Receiver<Result<Sample, String>>,
}

impl Sampler {
    /// Starts the thread. Its next sample follows after an interval. It ends after this value.
    fn start(
        mut sample: impl FnMut(&SampleSpec) -> Result<Sample, Failure> + Send + 'static,
        mut wanted: SampleSpec,
        interval: Duration,
    ) -> Self {
        let (wanted_sender, requests) = channel();
        let (sender, samples) = channel();
        thread::spawn(move || {
            let mut last = Instant::now();
            loop {
                let mut next = last + interval;
                loop {
                    match requests.recv_timeout(next.saturating_duration_since(Instant::now())) {
                        Ok(other) => {
                            wanted = other;
                            next = next.min(last + SHORTEST);
                        }
                        Err(RecvTimeoutError::Timeout) => break,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
                last = Instant::now();
                let result = sample(&wanted).map_err(|failure| failure.message().to_owned());
                if sender.send(result).is_err() {
                    return;
                }
            }
        });
        Self { wanted: wanted_sender, samples }
    }

    /// Requests samples for another view.
    fn want(&self, wanted: SampleSpec) {
        // The thread runs as long as this value exists.
        let _ = self.wanted.send(wanted);
    }

    /// Returns the next sample, if there is one.
    fn next(&self) -> Option<Result<Sample, String>> {
        self.samples.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::env;
    use std::fs::File;
    use std::io::Read;
    use std::process::Command;

    #[test]
    #[ignore = "another test starts it on a terminal"]
    fn panic_on_the_screen() {
        let _terminal = ScreenTerminal::enter().unwrap();
        panic!("the reason");
    }

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        let mut master = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap());
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        let test = "cli::top::interactive::tests::panic_on_the_screen";
        command.args(["--ignored", "--exact", "--nocapture", test]);
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        let mut process = command.spawn().unwrap();
        drop(command);
        let mut bytes = Vec::new();
        // After the other end is closed, a read of a terminal fails.
        let _ = master.read_to_end(&mut bytes);
        assert!(!process.wait().unwrap().success());
        let output = String::from_utf8_lossy(&bytes);
        let at = |words: &str| output.find(words).unwrap_or_else(|| panic!("no {words:?}: {output:?}"));
        assert!(at("\x1b[?1049h") < at("\x1b[?1049l") && at("\x1b[?1049l") < at("the reason"), "{output:?}");
        assert!(at("\x1b[?25h") < at("the reason"), "{output:?}");
    }

    #[test]
    fn a_sample_for_another_view_comes_soon_and_errors_do_not_end_the_thread() {
        use crate::cli::top::load::LoadDivision;
        use crate::cli::top::test_samples::sample;
        let take = |wanted: &SampleSpec| match wanted.by {
            LoadDivision::Core => Err(Failure::new(1, "the reason")),
            _ => Ok(sample(vec![])),
        };
        let wanted = |by| SampleSpec { by, cell: None };
        let sampler = Sampler::start(take, wanted(LoadDivision::Cell), Duration::from_secs(3600));
        for by in [LoadDivision::Core, LoadDivision::Activity, LoadDivision::Core] {
            sampler.want(wanted(by));
            let sample = sampler.samples.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(sample.err(), (by == LoadDivision::Core).then(|| "the reason".to_owned()));
        }
        assert!(sampler.next().is_none());
    }
}
