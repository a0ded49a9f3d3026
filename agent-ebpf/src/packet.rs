//! A packet: bounds-checked access to its bytes, and what the kernel knows beside them.

use core::mem::{MaybeUninit, offset_of};

use agent_common::{DropReason, TUNNEL_VNI};
use aya_ebpf::{
    EbpfContext as _,
    bindings::{
        __sk_buff, BPF_F_TUNINFO_IPV6, BPF_F_ZERO_CSUM_TX, bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
        bpf_fib_lookup, bpf_tunnel_key,
    },
    helpers::generated::{
        self, bpf_csum_update, bpf_get_hash_recalc, bpf_skb_adjust_room, bpf_skb_change_type,
        bpf_skb_get_tunnel_key, bpf_skb_load_bytes, bpf_skb_pull_data, bpf_skb_set_tunnel_key,
    },
    programs::TcContext,
};

use crate::{
    address::Address,
    clear,
    headers::{
        ETHERTYPE_QINQ, ETHERTYPE_VLAN, FragmentHeader, Header, IPV6_PAYLOAD, MacOption, NeighbourMessage,
    },
};

pub struct Packet {
    skb: *mut __sk_buff,
    /// Read once: LLVM would share the field's address between reads, which the verifier refuses.
    ifindex: u32,
    /// Offset of the frame in the data.
    start: usize,
}

/// What a program tells those that see the packet later.
///
/// The stamp is in `skb->tc_index`, which the stack copies to fragments and keeps for the packet around this
/// one, and which no other kernel code uses unless a filter returns `TC_ACT_OK`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Stamp {
    /// To an address that this node does not deliver, or of a flow that the stack translates.
    Checked = 0xfe01,
    /// To a pod of this node by the pod's own address: not translated.
    Direct = 0xfe02,
    /// To an address that the host's stack may translate: policies have not judged yet what the pod sends.
    Service = 0xfe03,
    /// Sent by the tunnel device: a packet of the tunnel is around this one.
    Tunnelled = 0xfe04,
}

/// The outer header of a packet that came through a tunnel device, as far as the device keeps it.
#[derive(Clone, Copy)]
pub struct Tunnel {
    pub vni: u32,
    pub source: Address,
    /// [`Address::UNSPECIFIED`] before Linux 6.0, where the kernel does not tell.
    pub destination: Address,
}

/// The verifier refuses misaligned access to the stack.
#[repr(C, align(8))]
struct Aligned<T>(T);

/// `linux/if_packet.h`.
const PACKET_HOST: u32 = 0;

/// The padding makes the offsets of the key's addresses multiples of eight: LLVM copies the addresses as
/// words of eight bytes.
#[repr(C, align(8))]
struct AlignedTunnelKey {
    padding: u32,
    key: bpf_tunnel_key,
}

// === impl Stamp ===

impl Stamp {
    /// What all stamps have in common.
    const MARK: u32 = 0xfe00;
    const MASK: u32 = 0xff00;
}

// === impl Packet ===

impl Packet {
    /// The headers that every IP packet has, and the start of what follows. A TCP segment's headers are
    /// longer, and the kernel keeps its payload in a page of its own: one byte more would copy.
    const HEADERS: usize = IPV6_PAYLOAD + size_of::<FragmentHeader>();
    /// The headers of neighbour discovery.
    const NEIGHBOUR: usize = IPV6_PAYLOAD + size_of::<NeighbourMessage>() + size_of::<MacOption>();

    #[inline(always)]
    pub fn new(ctx: &TcContext) -> Self {
        // SAFETY: the program's own context.
        let mut packet = unsafe { Self::of_caller(ctx.as_ptr().cast()) };
        packet.pull(Self::HEADERS);
        packet
    }

    /// The packet of a program that calls a global function, in that function.
    ///
    /// # Safety
    /// `skb` is the context of the program that runs: all that a packet does rests on this.
    #[inline(always)]
    pub unsafe fn of_caller(skb: *mut __sk_buff) -> Self {
        // SAFETY: a valid context.
        Self { skb, ifindex: unsafe { (*skb).ifindex }, start: 0 }
    }

    /// A packet inside of this one, whose frame begins at an offset. Global functions see this one.
    #[inline(always)]
    pub fn inside(&self, offset: usize) -> Self {
        Self { skb: self.skb, ifindex: self.ifindex, start: self.start + offset }
    }

    /// Offset of the frame in the data.
    #[inline(always)]
    pub fn start(&self) -> usize {
        self.start
    }

    /// The context, for a global function: the verifier walks such a function once, and not with each state
    /// in which a program calls it.
    #[inline(always)]
    pub fn context(&self) -> *mut __sk_buff {
        self.skb
    }

    /// Copies the headers of neighbour discovery into the linear data.
    #[inline(always)]
    pub fn pull_neighbour_message(&mut self) {
        self.pull(Self::NEIGHBOUR);
    }

    /// Copies the first bytes into the linear data. The headers of a packet from a raw socket can lie in a
    /// page of their own, which may be memory that the pod still writes to: a header that is checked there
    /// could change afterwards. (The kernel copies the pages of a `PACKET_TX_RING` before.)
    #[inline(always)]
    pub fn pull(&mut self, bytes: usize) {
        let wanted = if self.whole_len() < bytes as u32 { self.whole_len() } else { bytes as u32 };
        if self.data() + wanted as usize > self.data_end() {
            // SAFETY: the context is valid. On failure, the first read of a header fails.
            let _ = unsafe { bpf_skb_pull_data(self.skb, wanted) };
        }
    }

    /// Index of the host interface that the program runs on.
    #[inline(always)]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Index of the interface by which the packet came to this network namespace; 0 if the host itself sends
    /// it, and for IPv6 packets that the host has fragmented.
    #[inline(always)]
    pub fn ingress_ifindex(&self) -> u32 {
        // SAFETY: the kernel passes a valid context.
        unsafe { (*self.skb).ingress_ifindex }
    }

    /// Stamps a packet that passes. A pod cannot forge a stamp: every packet that passes gets one. A
    /// user who may configure another network namespace can: the kernel keeps the field on the way out.
    #[inline(always)]
    pub fn stamp(&self, stamp: Stamp) {
        // SAFETY: the kernel passes a valid context.
        unsafe { (*self.skb).tc_index = stamp as u32 }
    }

    /// Removes the stamp of a packet from outside: of the agent of another node on this machine, or forged.
    #[inline(always)]
    pub fn remove_stamp(&self) {
        // SAFETY: the kernel passes a valid context.
        unsafe {
            if (*self.skb).tc_index & Stamp::MASK == Stamp::MARK {
                (*self.skb).tc_index = 0;
            }
        }
    }

    #[inline(always)]
    pub fn has_stamp(&self, stamp: Stamp) -> bool {
        // SAFETY: the kernel passes a valid context.
        unsafe { (*self.skb).tc_index == stamp as u32 }
    }

    /// Whether the packet has a stamp: it is a pod's.
    #[inline(always)]
    pub fn is_stamped(&self) -> bool {
        self.has_stamp(Stamp::Checked) || self.has_stamp(Stamp::Direct) || self.has_stamp(Stamp::Service)
    }

    /// Bytes, from the Ethernet header on.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.whole_len() - self.start as u32
    }

    /// The hash of the packet's flow, which the kernel may take from the sender's socket.
    #[inline(always)]
    pub fn flow_hash(&self) -> u32 {
        // SAFETY: the context is valid.
        unsafe { bpf_get_hash_recalc(self.skb) as u32 }
    }

    /// Adds bytes behind the Ethernet header, or removes them. Returns whether the kernel did so: otherwise
    /// the packet is unchanged.
    #[inline(always)]
    pub fn resize_behind_ethernet(&mut self, bytes: i32, flags: u64) -> bool {
        // SAFETY: the context is valid. Pointers into the data end here: the packet is borrowed exclusively.
        unsafe { bpf_skb_adjust_room(self.skb, bytes, BPF_ADJ_ROOM_MAC, flags) == 0 }
    }

    /// Whether the frame carries a VLAN tag, which the kernel usually keeps beside the frame.
    #[inline(always)]
    pub fn has_vlan_tag(&self, ethertype: u16) -> bool {
        // SAFETY: the kernel passes a valid context.
        let beside = unsafe { (*self.skb).vlan_present } != 0;
        beside || ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ
    }

    /// The tag that the kernel keeps beside the frame, in the form of
    /// [`DropRecord::vlan`](agent_common::event::DropRecord).
    #[inline(always)]
    pub fn vlan_tag(&self) -> u32 {
        // SAFETY: the kernel passes a valid context.
        let (is_present, tag) = unsafe { ((*self.skb).vlan_present, (*self.skb).vlan_tci) };
        if is_present == 0 { 0 } else { 1 << 16 | tag & 0xffff }
    }

    /// The ID of the VLAN tag that the kernel keeps beside the frame; 0 without a tag, and for a tag that has
    /// a priority only.
    #[inline(always)]
    pub fn vlan_id(&self) -> u32 {
        self.vlan_tag() & 0xfff
    }

    /// The outer header, if the packet came through a tunnel device that keeps it (`external`).
    #[inline(always)]
    pub fn tunnel(&self) -> Option<Tunnel> {
        const WHOLE: usize = size_of::<bpf_tunnel_key>();
        // As Linux 5.10 knows the struct.
        const WITHOUT_LOCAL: usize = offset_of!(bpf_tunnel_key, __bindgen_anon_3);
        self.tunnel_of::<WHOLE, 0>()
            .or_else(|| self.tunnel_of::<WHOLE, { BPF_F_TUNINFO_IPV6 as u64 }>())
            .or_else(|| self.tunnel_of::<WITHOUT_LOCAL, 0>())
            .or_else(|| self.tunnel_of::<WITHOUT_LOCAL, { BPF_F_TUNINFO_IPV6 as u64 }>())
    }

    /// The kernel refuses another address family than the packet's (`EPROTO`), and a larger struct than its
    /// own (`EINVAL`).
    #[inline(always)]
    fn tunnel_of<const LEN: usize, const FLAGS: u64>(&self) -> Option<Tunnel> {
        let mut uninit = MaybeUninit::<AlignedTunnelKey>::uninit();
        // SAFETY: the context is valid, and the key has at least the given length.
        let failed = unsafe {
            let key = &raw mut (*uninit.as_mut_ptr()).key;
            bpf_skb_get_tunnel_key(self.skb, key, LEN as u32, FLAGS)
        };
        if failed != 0 {
            return None;
        }
        // SAFETY: on success, the helper has written the given length. The flags choose the union's member;
        // every bit pattern is valid.
        unsafe {
            let key = &raw const (*uninit.as_ptr()).key;
            let address = |v4: *const u32, v6: *const [u32; 4]| {
                // IPv4 in host order, IPv6 in network order.
                if FLAGS == 0 { Address::v4((*v4).to_be_bytes()) } else { Address::v6_words(*v6) }
            };
            let (remote, local) = (&raw const (*key).__bindgen_anon_1, &raw const (*key).__bindgen_anon_3);
            let source = address(remote.cast(), remote.cast());
            let has_destination = LEN == size_of::<bpf_tunnel_key>();
            let destination =
                if has_destination { address(local.cast(), local.cast()) } else { Address::UNSPECIFIED };
            Some(Tunnel { vni: (*key).tunnel_id, source, destination })
        }
    }

    /// Makes the tunnel device send the packet to this address of another node. UDP over IPv6 needs a
    /// checksum (RFC 8200, 8.1); over IPv4, the inner checksums suffice.
    #[inline(always)]
    pub fn set_tunnel(&self, remote: Address) -> bool {
        // As Linux 5.10 knows the struct.
        const WITHOUT_LOCAL: u32 = offset_of!(bpf_tunnel_key, __bindgen_anon_3) as u32;
        // SAFETY: integers and arrays of integers, for which zero is valid. A TTL of 0 is the default.
        let mut aligned: AlignedTunnelKey = unsafe { clear::zeroed() };
        aligned.key.tunnel_id = TUNNEL_VNI;
        let flags = if remote.is_mapped_ipv4() {
            // In host order.
            aligned.key.__bindgen_anon_1.remote_ipv4 = u32::from_be_bytes(remote.to_v4());
            BPF_F_ZERO_CSUM_TX
        } else {
            aligned.key.__bindgen_anon_1.remote_ipv6 = remote.to_v6_words();
            BPF_F_TUNINFO_IPV6
        };
        // SAFETY: the context is valid, and the key has at least the given length.
        unsafe {
            bpf_skb_set_tunnel_key(self.skb, &raw mut aligned.key, WITHOUT_LOCAL, u64::from(flags)) == 0
        }
    }

    /// Whether the frame is addressed to this host.
    #[inline(always)]
    pub fn is_for_host(&self) -> bool {
        // SAFETY: the kernel passes a valid context.
        unsafe { (*self.skb).pkt_type == PACKET_HOST }
    }

    /// Lets the stack accept the packet, whatever MAC address its frame has.
    #[inline(always)]
    pub fn accept(&self) {
        // SAFETY: the context is valid. The call fails for types that a received packet never has.
        unsafe { bpf_skb_change_type(self.skb, PACKET_HOST) };
    }

    /// Tells the kernel what a change of the headers has added to the packet's sum. Without the sum of a NIC
    /// (`CHECKSUM_COMPLETE`), the call does nothing.
    #[inline(always)]
    pub fn add_to_sum(&self, added: u32) {
        // SAFETY: the context is valid.
        unsafe { bpf_csum_update(self.skb, added) };
    }

    /// Whether the packet is segmented later (GSO). Then a length of zero in its IP header means "over 64
    /// KiB".
    #[inline(always)]
    pub fn is_gso(&self) -> bool {
        self.gso_size() != 0
    }

    /// Length of the payload of each segment; 0 without GSO.
    #[inline(always)]
    pub fn gso_size(&self) -> u32 {
        // SAFETY: the kernel passes a valid context.
        unsafe { (*self.skb).gso_size }
    }

    /// `bpf_fib_lookup`: 0 or one of `BPF_FIB_LKUP_RET_`; negative if the parameters are invalid.
    #[inline(always)]
    pub fn look_up_route(&self, parameters: &mut bpf_fib_lookup) -> i64 {
        let len = size_of::<bpf_fib_lookup>() as i32;
        // SAFETY: the context is valid, and the parameters are of the given length.
        unsafe { generated::bpf_fib_lookup(self.skb.cast(), &raw mut *parameters, len, 0) }
    }

    /// The header at an offset.
    ///
    /// # Errors
    /// `Malformed`, if the packet ends before the header does.
    #[inline(always)]
    pub fn header<T: Header>(&self, offset: usize) -> Result<&T, DropReason> {
        let header = self.pointer::<T>(offset)?;
        // SAFETY: in bounds, and valid for any bytes. Nothing writes while it is borrowed: `header_mut`
        // borrows the packet exclusively, as does `pull`, which calls a helper that moves the data.
        Ok(unsafe { &*header })
    }

    /// The header at an offset, to be changed in place.
    ///
    /// # Errors
    /// `Malformed`, if the packet ends before the header does.
    #[inline(always)]
    pub fn header_mut<T: Header>(&mut self, offset: usize) -> Result<&mut T, DropReason> {
        let header = self.pointer::<T>(offset)?;
        // SAFETY: as for `header`, and the packet is borrowed exclusively.
        Ok(unsafe { &mut *header })
    }

    /// A copy of the header at any offset, also outside the linear data.
    #[inline(always)]
    pub fn copy<T: Header>(&self, offset: usize) -> Option<T> {
        let mut copy = MaybeUninit::<Aligned<T>>::uninit();
        // SAFETY: the helper writes at most the size of `T`, to memory of at least that size.
        let failed = unsafe {
            bpf_skb_load_bytes(
                self.skb.cast(),
                (self.start + offset) as u32,
                copy.as_mut_ptr().cast(),
                size_of::<T>() as u32,
            )
        };
        // SAFETY: on success, the helper has written all bytes, which are valid whatever they are.
        if failed == 0 { Some(unsafe { copy.assume_init() }.0) } else { None }
    }

    /// Copies the packet's first bytes; returns their number.
    #[inline(always)]
    pub fn capture<const N: usize>(&self, to: &mut [u8; N]) -> u32 {
        let len = if self.len() < N as u32 { self.len() } else { N as u32 };
        // The verifier wants to see that `len` is neither 0 nor above `N`. Linux 6.1 learns nothing from a
        // comparison with zero; therefore one comparison of the number before.
        let last = core::hint::black_box(len.wrapping_sub(1));
        if last >= N as u32 {
            return 0;
        }
        let len = last + 1;
        // SAFETY: the helper writes `len` bytes, of which `to` has as many.
        let failed = unsafe { bpf_skb_load_bytes(self.skb.cast(), 0, to.as_mut_ptr().cast(), len) };
        if failed == 0 { len } else { 0 }
    }

    /// Address of the linear data.
    #[inline(always)]
    fn data(&self) -> usize {
        // SAFETY: the kernel passes a valid context.
        unsafe { (*self.skb).data as usize }
    }

    /// Address behind the linear data.
    #[inline(always)]
    fn data_end(&self) -> usize {
        // SAFETY: the kernel passes a valid context.
        unsafe { (*self.skb).data_end as usize }
    }

    /// Bytes of the data, also outside the linear data.
    #[inline(always)]
    fn whole_len(&self) -> u32 {
        // SAFETY: the kernel passes a valid context.
        unsafe { (*self.skb).len }
    }

    #[inline(always)]
    fn pointer<T>(&self, offset: usize) -> Result<*mut T, DropReason> {
        let start = self.data() + self.start + offset;
        if start + size_of::<T>() > self.data_end() {
            return Err(DropReason::Malformed);
        }
        Ok(start as *mut T)
    }
}
