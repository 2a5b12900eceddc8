//! Settings of the C library's allocator, which have no safe wrapper.
#![allow(unsafe_code, reason = "mallopt, malloc_trim and mallinfo2 are plain C functions")]

use nix::libc;

/// Limits the allocator to `arenas` arenas (each further one costs a few MB of memory after a burst). Large blocks are returned to the kernel at once,
/// the end of the heap when a megabyte of it is free: a lower threshold would shrink and grow the heap with each pod of a burst. The rest is returned
/// later, see [`crate::heap`]. Affects allocations after the call. Does nothing if the C library is not glibc.
pub(crate) fn limit_malloc_arenas(arenas: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two integers, accesses no memory of the caller and may be called at any time; it ignores unknown values.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1024 * 1024);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = arenas;
}

/// Returns free heap pages to the kernel.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes an integer, is thread safe and accesses only the allocator's own free lists.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes of the heap that are in use, without blocks that have a mapping of their own: those go back to the kernel when they are freed. 0 if the C library
/// is not glibc.
pub(crate) fn heap_in_use() -> u64 {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallinfo2 takes nothing, is thread safe and reads only the allocator's own state.
        let heap = unsafe { libc::mallinfo2() };
        u64::try_from(heap.uordblks).unwrap_or(u64::MAX)
    }
    #[cfg(not(target_env = "gnu"))]
    0
}
