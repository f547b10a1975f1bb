//! Zig-zag varints as records use them: at most five bytes for 32 bits, ten for 64. Kafka takes encodings longer than
//! needed, so these do.

/// A varint is cut short or longer than its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VarintError;

/// Reads a number from the front of `bytes` and returns what follows it. Nearly all numbers of a record are one byte.
#[inline(always)]
pub(crate) fn read_i32(bytes: &[u8]) -> Result<(i32, &[u8]), VarintError> {
    if let [byte @ ..0x80, rest @ ..] = bytes {
        return Ok((unzigzag(u64::from(*byte)) as i32, rest));
    }
    // What does not fit into 32 bits is dropped, as Kafka does.
    let (value, rest) = read_long(bytes, 5)?;
    Ok((unzigzag(value & u64::from(u32::MAX)) as i32, rest))
}

#[inline(always)]
pub(crate) fn read_i64(bytes: &[u8]) -> Result<(i64, &[u8]), VarintError> {
    if let [byte @ ..0x80, rest @ ..] = bytes {
        return Ok((unzigzag(u64::from(*byte)), rest));
    }
    let (value, rest) = read_long(bytes, 10)?;
    Ok((unzigzag(value), rest))
}

#[inline(always)]
fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn read_long(bytes: &[u8], size_max: usize) -> Result<(u64, &[u8]), VarintError> {
    let mut value: u64 = 0;
    for (i, byte) in bytes.iter().take(size_max).enumerate() {
        value |= u64::from(byte & 0x7F) << (7 * i);
        if byte & 0x80 == 0 {
            return Ok((value, &bytes[i + 1..]));
        }
    }
    Err(VarintError)
}

pub(crate) fn write_i64(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The zig-zag form of a 32-bit number is that of the same number in 64 bits.
pub(crate) fn write_i32(out: &mut Vec<u8>, value: i32) {
    write_i64(out, i64::from(value));
}

/// Bytes that `write_i64` takes.
pub(crate) fn size_i64(value: i64) -> usize {
    let zigzag = ((value << 1) ^ (value >> 63)) as u64;
    (64 - (zigzag | 1).leading_zeros() as usize).div_ceil(7)
}

pub(crate) fn size_i32(value: i32) -> usize {
    size_i64(i64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_at_their_size() {
        for value in
            [0, 1, -1, 63, 64, -64, -65, 8191, 8192, i64::from(i32::MAX), i64::from(i32::MIN), i64::MAX, i64::MIN]
        {
            let mut out = Vec::new();
            write_i64(&mut out, value);
            assert_eq!(out.len(), size_i64(value), "{value}");
            assert_eq!(read_i64(&out), Ok((value, &[][..])));
            if let Ok(small) = i32::try_from(value) {
                assert_eq!(read_i32(&out), Ok((small, &[][..])));
            }
        }
    }

    #[test]
    fn cut_and_overlong_numbers_are_refused() {
        assert_eq!(read_i32(&[]), Err(VarintError));
        assert_eq!(read_i32(&[0x80, 0x80]), Err(VarintError));
        assert_eq!(read_i32(&[0x80; 6]), Err(VarintError));
        assert_eq!(read_i64(&[0xFF; 11]), Err(VarintError));
        // Longer than needed, as Kafka takes it.
        assert_eq!(read_i32(&[0x82, 0x00]), Ok((1, &[][..])));
    }
}
