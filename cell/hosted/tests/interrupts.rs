//! Interrupts of a hosted cell, as its event loop sees them.

use isola_events::interrupt::on_interrupt;
use isola_events::{exit, run, sleep, spawn, spawn_on, spawn_task, timeout, yield_now};
use isola_hosted::file::{FileInterrupt, Interest};
use isola_hosted::{Hosted, Pinning, Settings};
use isola_platform::{CoreIndex, Platform};
use rustix::thread::sched_getaffinity;
use std::cell::Cell;
use std::io::{Read, Write, pipe};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const VECTOR: u8 = 0x51;

/// Runs a cell whose core 0 starts with `main`; returns its exit code.
fn cell(settings: Settings, main: impl Fn(&'static Hosted) + Sync) -> i32 {
    let codes = isola_hosted::run(settings, Vec::new(), |platform| {
        if isola_ebbs::current_core() == CoreIndex(0) {
            main(platform);
        }
        run()
    });
    codes[0]
}

/// Ends the cell with code 1 after a minute, if the test has not ended it.
fn end_late() {
    spawn_task(async {
        sleep(Duration::from_secs(60)).await;
        exit(1);
    })
    .detach();
}

fn bind(vector: u8, handler: impl Fn() + 'static) {
    on_interrupt(vector, handler).unwrap().keep();
}

#[test]
fn every_interrupt_from_any_thread_wakes_a_halted_core() {
    let code = cell(Settings::default(), |platform| {
        let count = Rc::new(Cell::new(0));
        let (ask, answer) = std::sync::mpsc::channel();
        let ask_again = ask.clone();
        bind(VECTOR, move || {
            count.set(count.get() + 1);
            match count.get() {
                5_000 => exit(0),
                _ => ask_again.send(()).unwrap(),
            }
        });
        ask.send(()).unwrap();
        end_late();
        thread::spawn(move || answer.iter().for_each(|()| platform.interrupt(CoreIndex(0), VECTOR)));
    });
    assert_eq!(code, 0);
}

#[test]
fn a_core_interrupts_itself_and_others() {
    let settings = Settings { cores: 2, ..Settings::default() };
    let code = cell(settings, |platform| {
        spawn_on(CoreIndex(1), move || {
            bind(VECTOR, || spawn_on(CoreIndex(0), || exit(0)));
            spawn_on(CoreIndex(0), move || platform.interrupt(CoreIndex(0), VECTOR));
        });
        bind(VECTOR, move || platform.interrupt(CoreIndex(1), VECTOR));
        end_late();
    });
    assert_eq!(code, 0);
}

/// Returns a pipe whose readable end interrupts the calling core, with the interrupt.
fn attach() -> (Rc<FileInterrupt>, std::io::PipeReader, std::io::PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    let file: OwnedFd = reader.try_clone().unwrap().into();
    let interrupt = FileInterrupt::attach(Arc::new(file), Interest::Readable, VECTOR).unwrap();
    (Rc::new(interrupt), reader, writer)
}

#[test]
fn a_file_interrupts_a_halted_core_and_a_busy_one() {
    let code = cell(Settings::default(), |_| {
        let (interrupt, reader, mut writer) = attach();
        let read = Rc::new(Cell::new(0));
        let (seen, again) = (read.clone(), interrupt.clone());
        bind(VECTOR, move || {
            let mut byte = [0];
            (&reader).read_exact(&mut byte).unwrap();
            seen.set(seen.get() + byte[0]);
            again.unmask();
        });
        end_late();
        spawn_task(async move {
            let _interrupt = interrupt;
            let mut other = writer.try_clone().unwrap();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                other.write_all(&[1, 2]).unwrap();
            });
            while read.get() < 3 {
                sleep(Duration::from_millis(1)).await;
            }
            writer.write_all(&[4]).unwrap();
            // The core does not halt from here on.
            while read.get() < 7 {
                yield_now().await;
            }
            exit(0);
        })
        .detach();
    });
    assert_eq!(code, 0);
}

#[test]
fn masked_and_dropped_files_do_not_interrupt() {
    let code = cell(Settings::default(), |_| {
        let (interrupt, _reader, mut writer) = attach();
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        bind(VECTOR, move || counted.set(counted.get() + 1));
        spawn_task(async move {
            let _reader = _reader;
            writer.write_all(&[1, 2]).unwrap();
            let ten = Duration::from_millis(10);
            sleep(ten).await;
            assert_eq!(count.get(), 1, "masked by its first interrupt");
            interrupt.unmask();
            sleep(ten).await;
            assert_eq!(count.get(), 2, "unread data interrupts again");
            interrupt.unmask();
            drop(interrupt);
            sleep(ten).await;
            assert!(count.get() <= 3);
            let after = count.get();
            writer.write_all(&[3]).unwrap();
            sleep(ten).await;
            assert_eq!(count.get(), after);
            exit(0);
        })
        .detach();
    });
    assert_eq!(code, 0);
}

#[test]
fn a_thread_that_is_not_a_core_cannot_be_interrupted() {
    let (reader, _writer) = pipe().unwrap();
    let error = FileInterrupt::attach(Arc::new(reader.into()), Interest::Readable, VECTOR).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
}

#[test]
fn cores_are_pinned_if_there_are_enough_processors() {
    let allowed = sched_getaffinity(None).unwrap().count() as usize;
    for cores in [1, allowed.min(8), allowed + 1] {
        let settings = Settings { cores, pinning: Pinning::WherePossible, ..Settings::default() };
        let counts = isola_hosted::run(settings, Vec::new(), |_| sched_getaffinity(None).unwrap().count());
        let expected = if cores <= allowed { 1 } else { allowed as u32 };
        assert!(counts.iter().all(|&count| count == expected), "{cores} cores: {counts:?}");
    }
}

#[test]
fn ended_cells_leave_no_descriptors_open() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let settings = || Settings { cores: 4, ..Settings::default() };
    let one = || {
        cell(settings(), |_| spawn(|| exit(0)));
    };
    (0..8).for_each(|_| one());
    let before = open();
    (0..100).for_each(|_| one());
    // Other tests of this process open descriptors as well.
    assert!(open() < before + 100, "{before} descriptors, then {}", open());
}

#[test]
fn timeouts_work_while_a_core_is_interrupted_constantly() {
    let code = cell(Settings::default(), |platform| {
        bind(VECTOR, move || spawn(move || platform.interrupt(CoreIndex(0), VECTOR)));
        platform.interrupt(CoreIndex(0), VECTOR);
        spawn_task(async {
            let late = timeout(Duration::from_millis(20), std::future::pending::<()>()).await;
            exit(if late.is_err() { 0 } else { 1 });
        })
        .detach();
    });
    assert_eq!(code, 0);
}
