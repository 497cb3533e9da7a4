//! The answer to a frame.

use isola_drivers::net::HEADER_LEN;

/// The address to which ARP requests are answered.
const IP: [u8; 4] = [10, 0, 2, 15];

/// The EtherType of echoed frames (IEEE 802's numbers for experiments), and of the frame that ends the machine.
const ECHO: [u8; 2] = [0x88, 0xb5];
const END: [u8; 2] = [0x88, 0xb6];
const ARP: [u8; 2] = [0x08, 0x06];

/// The handling of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameAction {
    /// The frame is sent back, as changed.
    SendBack,
    /// The frame is dropped.
    Drop,
    /// The frame ends the machine.
    End,
}

/// Turns a frame into its answer. `buffer` begins with the device's header.
pub fn answer(buffer: &mut [u8], mac: [u8; 6]) -> FrameAction {
    let Some(frame) = buffer.get_mut(HEADER_LEN..).filter(|frame| frame.len() >= 14) else {
        return FrameAction::Drop;
    };
    let kind = [frame[12], frame[13]];
    let to_us = frame[..6] == mac || frame[..6] == [0xff; 6];
    let sender: [u8; 6] = [frame[6], frame[7], frame[8], frame[9], frame[10], frame[11]];
    match kind {
        _ if !to_us => return FrameAction::Drop,
        END => return FrameAction::End,
        ECHO => {}
        // An ARP request for this address: the answer has this device's address, and goes to the sender.
        ARP if frame.len() >= 42 && frame[20..22] == [0, 1] && frame[38..42] == IP => {
            frame[21] = 2;
            frame.copy_within(22..32, 32);
            frame[22..28].copy_from_slice(&mac);
            frame[28..32].copy_from_slice(&IP);
        }
        _ => return FrameAction::Drop,
    }
    frame[..6].copy_from_slice(&sender);
    frame[6..12].copy_from_slice(&mac);
    FrameAction::SendBack
}
