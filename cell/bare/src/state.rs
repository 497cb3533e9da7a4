//! The state of the platform, which the first core sets once, and which all other modules read.

use alloc::vec::Vec;
use isola_abi::descriptor::{Descriptor, DeviceKind};
use isola_machine::authority::Authority;
use isola_machine::device::DeviceRegisters;
use isola_machine::power;
use isola_platform::Clock;
use spin::{Mutex, Once};

/// The platform's right to program its cores. Private to this crate.
// SAFETY: this crate is the platform of the image: it sets all handlers, and decides which interrupts are sent.
pub(crate) const AUTHORITY: Authority = unsafe { Authority::assume() };

/// The platform of the cell.
pub static BARE: Bare = Bare { state: Once::new() };

/// Bare hardware. Its implementation of the trait is in `platform`.
pub struct Bare {
    state: Once<State>,
}

/// The part of the state that follows from the descriptor.
pub(crate) struct State {
    pub(crate) descriptor: Descriptor,
    pub(crate) clock: Clock,
    /// Ticks of the local APIC's timer per cycle, as a fraction of 2^32.
    pub(crate) timer_ticks_per_cycle: u64,
    /// The devices that are not in use yet.
    pub(crate) devices: Mutex<Vec<(DeviceKind, DeviceRegisters)>>,
}

impl Bare {
    /// Returns the state, for code that runs in events.
    pub(crate) fn state(&self) -> &State {
        self.state.get().expect("the first core makes the platform before any event runs")
    }

    /// Returns the state, if the first core has set it.
    pub(crate) fn state_if_set(&self) -> Option<&State> {
        self.state.get()
    }
}

/// Removes the devices of a kind that are not in use yet, and returns them.
pub(crate) fn take_devices(kind: DeviceKind) -> Vec<DeviceRegisters> {
    let mut devices = BARE.state().devices.lock();
    devices.extract_if(.., |(of, _)| *of == kind).map(|(_, registers)| registers).collect()
}

/// Sets the state, on the first core.
pub(crate) fn start(descriptor: Descriptor, devices: Vec<(DeviceKind, DeviceRegisters)>) {
    let words = descriptor.clock;
    let ratio = (u128::from(words.apic_timer_hz) << 32) / u128::from(words.tsc_hz.max(1));
    let timer_ticks_per_cycle = u64::try_from(ratio).unwrap_or(u64::MAX);
    BARE.state.call_once(|| State {
        clock: Clock::new(&words),
        descriptor,
        timer_ticks_per_cycle,
        devices: Mutex::new(devices),
    });
}

/// Returns the cell's resources.
pub(crate) fn descriptor() -> &'static Descriptor {
    &BARE.state().descriptor
}

/// Returns whether the image is standalone, or does not have its descriptor yet.
pub(crate) fn is_alone() -> bool {
    BARE.state_if_set().is_none_or(|state| state.descriptor.supervisor.is_none())
}

/// Ends the machine if the image is standalone.
pub(crate) fn end_machine_if_alone(code: i32) {
    if is_alone() {
        power::exit(AUTHORITY, code as u8)
    }
}
