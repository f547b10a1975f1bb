#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| pollux_fuzz_targets::options::config_file(data));
