//! The entry of a flow that begins, in words.

use core::mem::offset_of;

use agent_common::policy::View;

use crate::flow_key::Padded;

/// A `View` whose fields behind the flags are zeros.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NewView {
    pub used: u64,
    pub epoch: u32,
    pub peer: u32,
    pub flags: Padded<u64>,
}

const _: () = assert!(size_of::<NewView>() == size_of::<View>());
const _: () = assert!(offset_of!(NewView, epoch) == offset_of!(View, epoch));
const _: () = assert!(offset_of!(NewView, peer) == offset_of!(View, peer));
const _: () = assert!(offset_of!(NewView, flags) == offset_of!(View, flags));
