//! Delivery of signals: before the program continues, and at no other point.

use crate::Errno;
use crate::core_dump;
use crate::exit_status::ExitStatus;
use crate::signals::{
    DefaultAction, FrameInput, Handler, Signal, SignalAction, SignalInfo, SignalSet, enter_handler,
};
use crate::thread::{InterruptedCall, SYSCALL_LEN, Thread};
use crate::tracing;
use alloc::boxed::Box;
use isola_abi::user_context::UserRegisters;
use isola_linux_abi::numbers::{__NR_restart_syscall, SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART};

/// The result of [`deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// No signal was pending.
    Nothing,
    /// The program continues in a handler.
    Handler,
    /// A signal was delivered without a handler, or the process ends.
    Other,
}

/// Returns whether a pending signal has an effect on the thread: it is not ignored.
pub fn has_effect(thread: &Thread) -> bool {
    let shared = thread.process.signals.lock();
    let signals = thread.state.signals.lock();
    // Its tracer sees each signal.
    let is_traced = thread.state.tracing.is_traced();
    let pending = signals.pending.set() | shared.pending.set();
    let mut left = signals.deliverable(shared.pending.set()) | pending & signals.awaited;
    while let Some(signal) = left.first() {
        let stops_waits = signals.awaited.contains(signal) || !shared.actions.ignores(signal);
        // A continuation has taken effect when it was sent.
        let continues = signal == Signal::SIGCONT && shared.actions.get(signal).handler == Handler::Default;
        if (stops_waits && !continues) || is_traced {
            return true;
        }
        left.remove(signal);
    }
    false
}

/// Delivers one pending signal. Without one, completes an interrupted call: it is restarted.
pub async fn deliver(thread: &mut Thread) -> Delivered {
    let taken = take(thread);
    let Some(mut info) = taken else {
        restart_without_handler(thread);
        restore_mask(thread);
        return Delivered::Nothing;
    };
    thread.process.timers.delivered(&thread.system, &thread.process, &mut info);
    if thread.state.tracing.is_traced() {
        match tracing::signal_stop(thread, info).await {
            Some(decided) => info = decided,
            None => return Delivered::Other,
        }
    }
    let action = use_action(thread, info.signal);
    match action.handler {
        Handler::Ignore => Delivered::Other,
        Handler::Default => {
            default_action(thread, &info).await;
            Delivered::Other
        }
        Handler::Function(address) => match run_handler(thread, &info, action, address).await {
            Ok(()) => {
                tracing::handler_entered(thread).await;
                Delivered::Handler
            }
            Err(_) => {
                // As Linux: without room for the frame SIGSEGV follows, which has another stack perhaps. Without room for
                // that one's frame, the process ends.
                if info.signal == Signal::SIGSEGV {
                    kill(thread, &SignalInfo::kernel(Signal::SIGSEGV)).await;
                } else {
                    force(thread, SignalInfo::kernel(Signal::SIGSEGV));
                }
                Delivered::Other
            }
        },
    }
}

/// Removes a pending signal that is not blocked.
fn take(thread: &Thread) -> Option<SignalInfo> {
    let mut shared = thread.process.signals.lock();
    let mut signals = thread.state.signals.lock();
    let wanted = !signals.blocked;
    signals.pending.take(wanted).or_else(|| shared.pending.take(wanted))
}

/// Returns the action of a signal. `SA_RESETHAND` takes effect.
fn use_action(thread: &Thread, signal: Signal) -> SignalAction {
    let mut shared = thread.process.signals.lock();
    let action = shared.actions.get(signal);
    if action.has(SA_RESETHAND) && matches!(action.handler, Handler::Function(_)) {
        let _ = shared.actions.set(signal, SignalAction { handler: Handler::Default, ..action });
    }
    action
}

async fn default_action(thread: &mut Thread, info: &SignalInfo) {
    let signal = info.signal;
    match signal.default_action() {
        DefaultAction::Ignore | DefaultAction::Continue => {}
        DefaultAction::Stop if thread.system.ignores_stop(&thread.process, signal) => {}
        DefaultAction::Stop => thread.system.stop_process(&thread.process, signal),
        DefaultAction::Terminate | DefaultAction::Core => kill(thread, info).await,
    }
}

/// Ends the process by a signal.
async fn kill(thread: &mut Thread, info: &SignalInfo) {
    let signal = info.signal;
    if signal.default_action() != DefaultAction::Core {
        return thread.process.end(ExitStatus::Killed { signal, dumps_core: false });
    }
    let UserRegisters { rip, rsp, .. } = *thread.registers();
    let (pid, fault) = (thread.process.pid, thread.fault.address);
    thread.system.environment.report(&alloc::format!(
        "linux: process {pid} ends by {signal:?} at {rip:#x}, stack {rsp:#x}, address {fault:#x}"
    ));
    // The future is large, and rarely needed.
    Box::pin(core_dump::end_process(thread, info)).await;
}

/// Makes the program continue in a handler.
async fn run_handler(
    thread: &mut Thread,
    info: &SignalInfo,
    action: SignalAction,
    address: u64,
) -> Result<(), Errno> {
    restart_with_handler(thread, action);
    tracing::before_handler(thread);
    let (mask, alternate) = {
        let signals = thread.state.signals.lock();
        // A call such as `sigsuspend` has replaced the mask: the handler's return restores the one before.
        (signals.saved_mask.unwrap_or(signals.blocked), signals.alternate)
    };
    let registers = *thread.registers();
    let state = thread.user.extended_state().to_vec();
    let fault = core::mem::take(&mut thread.fault);
    let input = FrameInput {
        registers: &registers,
        state: &state,
        mask,
        info,
        alternate,
        on_alternate: action.has(SA_ONSTACK),
        restorer: action.restorer,
        fault,
    };
    let frame = input.lay_out()?;
    thread.memory.write_bytes(frame.state.0, &frame.state.1).await?;
    thread.memory.write_bytes(frame.address, &frame.bytes).await?;
    enter_handler(thread.registers(), address, info.signal, &frame);
    let mut signals = thread.state.signals.lock();
    signals.saved_mask = None;
    if signals.alternate.disarms {
        signals.alternate = Default::default();
    }
    let itself = if action.has(SA_NODEFER) { SignalSet::EMPTY } else { SignalSet::of(info.signal) };
    signals.blocked = (signals.blocked | action.mask | itself) & !SignalSet::UNBLOCKABLE;
    Ok(())
}

/// Restarts an interrupted call, as no handler runs.
fn restart_without_handler(thread: &mut Thread) {
    let Some(InterruptedCall { number, errno }) = thread.interrupted_call.take() else { return };
    let registers = thread.registers();
    registers.rip = registers.rip.wrapping_sub(SYSCALL_LEN);
    registers.rax = if errno == Errno::ERESTART_RESTARTBLOCK { __NR_restart_syscall.into() } else { number };
}

/// Restarts an interrupted call after the handler, or ends it with EINTR.
fn restart_with_handler(thread: &mut Thread, action: SignalAction) {
    let Some(InterruptedCall { number, errno }) = thread.interrupted_call.take() else { return };
    let restarts = errno == Errno::ERESTARTNOINTR || (errno == Errno::ERESTARTSYS && action.has(SA_RESTART));
    let registers = thread.registers();
    if restarts {
        registers.rip = registers.rip.wrapping_sub(SYSCALL_LEN);
        registers.rax = number;
    } else {
        registers.rax = Errno::EINTR.to_result();
        thread.restart = None;
    }
}

/// Restores the mask that a call had replaced, if no handler ran.
fn restore_mask(thread: &Thread) {
    let mut signals = thread.state.signals.lock();
    if let Some(mask) = signals.saved_mask.take() {
        signals.blocked = mask;
        drop(signals);
        // Signals that the old mask does not block are delivered next.
        thread.state.interrupt();
    }
}

/// Makes a signal pending that the program cannot continue without. If it is blocked or ignored, the default action
/// follows.
pub fn force(thread: &mut Thread, info: SignalInfo) {
    let signal = info.signal;
    {
        let mut shared = thread.process.signals.lock();
        let mut signals = thread.state.signals.lock();
        let is_blocked = signals.blocked.contains(signal);
        let action = shared.actions.get(signal);
        if is_blocked || action.handler == Handler::Ignore {
            let _ = shared.actions.set(signal, SignalAction::default());
            signals.blocked.remove(signal);
        }
        let _ = signals.pending.add(info);
    }
    thread.state.interrupt();
}
