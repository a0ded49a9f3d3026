//! Raw `bpf(2)` calls for what aya does not expose: the BTF of a map, a walk over keys that pauses, and
//! changes of many rows at once.

use std::{
    io,
    mem::{self, MaybeUninit},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    ptr,
};

use aya::Pod;
use aya_obj::generated::{
    bpf_attr, bpf_attr__bindgen_ty_3, bpf_attr__bindgen_ty_9, bpf_btf_info, bpf_cmd, bpf_map_info,
    bpf_prog_info,
};
use nix::libc;

/// The kernel's description of a map.
///
/// # Errors
/// The error of the system call.
pub(super) fn map_info(map: BorrowedFd<'_>) -> io::Result<bpf_map_info> {
    // In place: an older kernel, whose struct is shorter, wants the rest to be zero, padding included.
    let mut info = MaybeUninit::<bpf_map_info>::zeroed();
    // SAFETY: a C struct of integers, for which zeros are valid. `bpf_map_info` is what the kernel writes for
    // a map. Its pointer is null, with a length of zero.
    unsafe {
        object_info(map, info.assume_init_mut())?;
        Ok(info.assume_init())
    }
}

/// The kernel's description of a program.
///
/// # Errors
/// The error of the system call.
pub(super) fn program_info(program: BorrowedFd<'_>) -> io::Result<bpf_prog_info> {
    // SAFETY: a C struct of integers, for which zeros are valid.
    let mut info: bpf_prog_info = unsafe { mem::zeroed() };
    // SAFETY: `bpf_prog_info` is what the kernel writes for a program. Its pointers are null, with lengths of
    // zero.
    unsafe { object_info(program, &mut info) }?;
    Ok(info)
}

/// The BTF with this ID, in the format of a `.BTF` section. Requires `CAP_SYS_ADMIN`.
///
/// # Errors
/// The error of the system call.
pub(super) fn btf(id: u32) -> io::Result<Vec<u8>> {
    // SAFETY: a C union of integers, for which zeros are valid.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    attr.__bindgen_anon_6.__bindgen_anon_1.btf_id = id;
    // SAFETY: the command reads an ID and returns a descriptor, which nothing else owns.
    let btf = unsafe {
        let fd = call(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut attr)?;
        OwnedFd::from_raw_fd(fd)
    };
    // The first call returns the size; the second call fills the buffer.
    let mut bytes = Vec::new();
    for _ in 0..2 {
        // SAFETY: a C struct of integers, for which zeros are valid.
        let mut info: bpf_btf_info = unsafe { mem::zeroed() };
        info.btf = bytes.as_mut_ptr() as u64;
        info.btf_size = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        // SAFETY: `bpf_btf_info` is what the kernel writes for BTF; `btf` points to `btf_size` writable
        // bytes.
        unsafe { object_info(btf.as_fd(), &mut info) }?;
        bytes.resize(info.btf_size as usize, 0);
    }
    Ok(bytes)
}

/// The key behind another one in a map whose keys have this type; without another one, or behind one that is
/// gone, the first.
///
/// # Errors
/// The error of the system call.
pub(super) fn next_key<K: Pod>(map: BorrowedFd<'_>, last: Option<&K>) -> io::Result<Option<K>> {
    let mut next = MaybeUninit::<K>::uninit();
    // SAFETY: a C union of integers, for which zeros are valid.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    attr.__bindgen_anon_2.map_fd = map.as_raw_fd().cast_unsigned();
    attr.__bindgen_anon_2.key = last.map_or(0, |last| ptr::from_ref(last) as u64);
    attr.__bindgen_anon_2.__bindgen_anon_1.next_key = next.as_mut_ptr() as u64;
    // SAFETY: the kernel reads and writes a key of the map, whose size is that of `K`.
    match unsafe { call(bpf_cmd::BPF_MAP_GET_NEXT_KEY, &mut attr) } {
        // SAFETY: the kernel has written the key.
        Ok(_) => Ok(Some(unsafe { next.assume_init() })),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Rows of a map. A place in it is a key of a trie, and the `u32` of a bucket in a hash map.
pub(super) struct Batch<K, V, P> {
    pub(super) rows: Vec<(K, V)>,
    /// The place behind the rows, unless the end is reached.
    pub(super) next: Option<P>,
}

/// Up to so many rows of a map whose keys, values and places have these types, from a place or the first row
/// on.
///
/// # Errors
/// The error of the system call: older kernels have none for tries; a bucket of a hash map may have more
/// rows.
pub(super) fn look_up_batch<K: Pod, V: Pod, P: Pod>(
    map: BorrowedFd<'_>,
    from: Option<&P>,
    most: usize,
) -> io::Result<Batch<K, V, P>> {
    let (mut keys, mut values) = (Vec::<K>::with_capacity(most), Vec::<V>::with_capacity(most));
    let mut next = MaybeUninit::<P>::uninit();
    // SAFETY: a C union of integers, for which zeros are valid.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    attr.batch = bpf_attr__bindgen_ty_3 {
        in_batch: from.map_or(0, |from| ptr::from_ref(from) as u64),
        out_batch: next.as_mut_ptr() as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: u32::try_from(most).map_err(io::Error::other)?,
        map_fd: map.as_raw_fd().cast_unsigned(),
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads a place of the map from `from`, writes one to `next`, and at most `most` keys
    // and values, for which there is room.
    let is_end = match unsafe { call(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr) } {
        Ok(_) => false,
        // The last rows.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
        Err(error) => return Err(error),
    };
    // SAFETY: the kernel has set the member to the number of rows that it has written, at most `most`.
    unsafe {
        let found = (attr.batch.count as usize).min(most);
        keys.set_len(found);
        values.set_len(found);
    }
    // SAFETY: the kernel has written the place, unless it has reached the end.
    let next = (!is_end).then(|| unsafe { next.assume_init() });
    Ok(Batch { rows: keys.into_iter().zip(values).collect(), next })
}

/// Sets rows of a map whose keys and values have these types. After an error, some of them may be set.
///
/// # Errors
/// The error of the system call.
pub(super) fn update_batch<K: Pod, V: Pod>(map: BorrowedFd<'_>, keys: &[K], values: &[V]) -> io::Result<()> {
    // SAFETY: there is a key and a value for each row.
    unsafe { batch(bpf_cmd::BPF_MAP_UPDATE_BATCH, map, keys, Some(values)) }
}

/// Removes rows of a map whose keys have this type, up to the first that is missing.
///
/// # Errors
/// The error of the system call.
pub(super) fn delete_batch<K: Pod>(map: BorrowedFd<'_>, keys: &[K]) -> io::Result<()> {
    // SAFETY: the command reads keys only.
    unsafe { batch::<K, K>(bpf_cmd::BPF_MAP_DELETE_BATCH, map, keys, None) }
}

/// Runs a tc program, on data that it reads as a packet, once or until no signal interrupts the call. Returns
/// its verdict.
///
/// # Errors
/// The error of the system call.
pub(super) fn run<T: Pod>(program: BorrowedFd<'_>, data: &T) -> io::Result<u32> {
    // SAFETY: a C union of integers, for which zeros are valid.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    // SAFETY: a member of the union, whose integers were zeroed as a whole.
    let test = unsafe { &mut attr.test };
    test.prog_fd = program.as_raw_fd().cast_unsigned();
    test.data_in = ptr::from_ref(data) as u64;
    test.data_size_in = u32::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // Until Linux 5.12, a signal interrupts the call after the program has run.
    loop {
        // SAFETY: the kernel reads the data, of the given length, and writes to the union's member only.
        match unsafe { call(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr) } {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result.map(drop)?,
        }
    }
    // SAFETY: the kernel has written this member.
    Ok(unsafe { attr.test.retval })
}

/// # Safety
/// The command reads keys and, if any, values; their types have the sizes of the map's.
unsafe fn batch<K: Pod, V: Pod>(
    command: bpf_cmd,
    map: BorrowedFd<'_>,
    keys: &[K],
    values: Option<&[V]>,
) -> io::Result<()> {
    let count = values.map_or(keys.len(), |values| values.len().min(keys.len()));
    // SAFETY: a C union of integers, for which zeros are valid.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    attr.batch = bpf_attr__bindgen_ty_3 {
        in_batch: 0,
        out_batch: 0,
        keys: keys.as_ptr() as u64,
        values: values.map_or(0, |values| values.as_ptr() as u64),
        count: u32::try_from(count).map_err(io::Error::other)?,
        map_fd: map.as_raw_fd().cast_unsigned(),
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: `keys` and `values` have `count` rows; the rest is the caller's promise.
    unsafe { call(command, &mut attr) }.map(drop)
}

/// # Safety
/// `T` is the kernel's information struct for this kind of object; pointers in it are valid for the lengths
/// beside them.
unsafe fn object_info<T>(object: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    // SAFETY: a C union of integers, for which zeros are valid.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    attr.info = bpf_attr__bindgen_ty_9 {
        bpf_fd: object.as_raw_fd().cast_unsigned(),
        info_len: u32::try_from(size_of::<T>()).map_err(io::Error::other)?,
        info: ptr::from_mut(info) as u64,
    };
    // SAFETY: `info` is writable for `info_len` bytes; the rest is the caller's promise.
    unsafe { call(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }.map(drop)
}

/// # Safety
/// `attr` is what the command expects, with valid pointers.
unsafe fn call(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: `attr` is writable for the length that is passed; the rest is the caller's promise.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, ptr::from_mut(attr), size_of::<bpf_attr>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(result).map_err(io::Error::other) }
}
