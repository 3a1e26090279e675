#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| syncline_fuzz::targets::superblock(bytes));
