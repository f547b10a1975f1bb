#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| pollux_fuzz_targets::messages::control_record(data));
