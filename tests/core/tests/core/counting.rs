//! Counts the allocations of one thread, so that parallel tests do not affect each other.
#![allow(unsafe_code)] // An allocator is the only way to observe allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
}

struct CountingAllocator;

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

// SAFETY: every call goes to the system allocator unchanged; counting touches only thread-local cells without
// destructors.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as i64;
        HELD.set(HELD.get() + size);
        ALLOCATED.set(ALLOCATED.get() + size);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The result of `work`, how many bytes it keeps allocated, and how many it allocated in total.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, i64, i64) {
    let (held, allocated) = (HELD.get(), ALLOCATED.get());
    let value = work();
    (value, HELD.get() - held, ALLOCATED.get() - allocated)
}
