//! Settings of the C library's allocator, which have no safe wrapper.
#![allow(unsafe_code, reason = "mallopt and malloc_trim are plain C functions")]

use nix::libc;

/// Keeps the allocator to `arenas` arenas (each further one costs a few MB of resident memory after
/// a burst) and lets it give back large pieces at once, and the end of the heap when a megabyte of it
/// is free: with less it goes back and forth with each pod of a burst. What that keeps is returned
/// later, see [`crate::runtime::run`]. Takes effect for allocations after the call. Does nothing
/// where the C library is not glibc.
pub(crate) fn limit_malloc_arenas(arenas: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two integers, reads no memory of ours and may be called at any time; an
    // unknown value is ignored by it.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1024 * 1024);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = arenas;
}

/// Gives free heap pages back to the kernel, after a burst such as an initial list.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes an integer, is thread safe and touches only the allocator's own
    // free lists.
    unsafe {
        libc::malloc_trim(0);
    }
}
