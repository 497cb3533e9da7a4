//! The control queue: commands to a network device (virtio 1.2, 5.1.6.5).

use crate::device::{DeviceError, PATIENCE};
use crate::virtqueue::{Access, Fault, Part, VirtQueue};
use isola_machine::dma::DmaRegion;

/// The class of receive-mode commands, and the commands that set promiscuous and all-multicast mode.
const CLASS_RECEIVE: u8 = 0;
const COMMAND_PROMISCUOUS: u8 = 0;
const COMMAND_ALL_GROUPS: u8 = 1;

/// The class of multiqueue commands, and the commands that set the number of used pairs and the RSS parameters.
const CLASS_QUEUES: u8 = 4;
const COMMAND_SET_PAIRS: u8 = 0;
const COMMAND_SPREAD: u8 = 1;

/// The offset of the device's answer in the command region: behind the longest command.
const ANSWER: usize = 2 + super::spreading::COMMAND_LEN;
const ANSWER_OK: u8 = 0;
const ANSWER_NONE: u8 = 0xff;

/// The control queue of a running device.
#[derive(Debug)]
pub(super) struct ControlQueue {
    queue: VirtQueue<DmaRegion>,
    commands: Option<DmaRegion>,
}

impl ControlQueue {
    pub(super) fn new(mut queue: VirtQueue<DmaRegion>, memory: &mut dyn FnMut(usize) -> DmaRegion) -> Self {
        queue.disarm();
        Self { queue, commands: Some(memory(ANSWER + 1)) }
    }

    /// Makes the device distribute received frames over the first `pairs` pairs.
    ///
    /// # Errors
    /// [`DeviceError::CommandRefused`], [`DeviceError::Fault`].
    pub(super) fn set_pairs(&mut self, pairs: u16) -> Result<(), DeviceError> {
        let [low, high] = pairs.to_le_bytes();
        self.execute(CLASS_QUEUES, COMMAND_SET_PAIRS, &[low, high])
    }

    /// Makes the device distribute received frames by this table.
    ///
    /// # Errors
    /// [`DeviceError::CommandRefused`], [`DeviceError::Fault`].
    pub(super) fn spread(&mut self, table: &[u8]) -> Result<(), DeviceError> {
        self.execute(CLASS_QUEUES, COMMAND_SPREAD, table)
    }

    /// Makes the device drop unicast frames for other addresses: until this command it delivers all frames of its
    /// network. It still delivers all multicast frames, as IPv6 routers and neighbours use multicast.
    ///
    /// # Errors
    /// [`DeviceError::CommandRefused`], [`DeviceError::Fault`].
    pub(super) fn filter(&mut self) -> Result<(), DeviceError> {
        self.execute(CLASS_RECEIVE, COMMAND_ALL_GROUPS, &[1])?;
        self.execute(CLASS_RECEIVE, COMMAND_PROMISCUOUS, &[0])
    }

    /// Executes a command with at most [`super::spreading::COMMAND_LEN`] bytes of data. Polls for the answer: commands
    /// are rare, and devices answer at once.
    fn execute(&mut self, class: u8, command: u8, data: &[u8]) -> Result<(), DeviceError> {
        let mut commands = self.commands.take().ok_or(Fault::Silent)?;
        commands.write_u8(0, class);
        commands.write_u8(1, command);
        (2..).zip(data).for_each(|(offset, byte)| commands.write_u8(offset, *byte));
        commands.write_u8(ANSWER, ANSWER_NONE);
        let parts = [
            Part { offset: 0, len: 2, access: Access::DeviceReads },
            Part { offset: 2, len: data.len() as u32, access: Access::DeviceReads },
            Part { offset: ANSWER, len: 1, access: Access::DeviceWrites },
        ];
        if let Err(refused) = self.queue.lend_parts(commands, &parts) {
            self.commands = Some(refused.buffer);
            return Err(self.queue.fault().map_or(DeviceError::CommandRefused, DeviceError::Fault));
        }
        self.queue.publish();
        for _ in 0..PATIENCE {
            if let Some(returned) = self.queue.take_returned()? {
                let answer = returned.buffer.read_u8(ANSWER);
                self.commands = Some(returned.buffer);
                return if answer == ANSWER_OK { Ok(()) } else { Err(DeviceError::CommandRefused) };
            }
            core::hint::spin_loop();
        }
        Err(self.queue.break_off(Fault::Silent).into())
    }
}
