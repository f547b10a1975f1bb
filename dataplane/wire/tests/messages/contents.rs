//! An encoder of its own: walks a schema and writes pseudo-random contents, knowing nothing of the generated code.

use wire_codegen::{Field, FieldType, Message, Primitive, Versions};

/// Splitmix64: small, and the same everywhere.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

pub struct Contents<'a> {
    message: &'a Message,
    version: i16,
    flexible: bool,
    dice: &'a mut Dice,
}

/// What to write for a field.
#[derive(Clone, Copy, PartialEq)]
enum Fill {
    Random,
    Default,
}

pub fn bytes(message: &Message, version: i16, dice: &mut Dice) -> Vec<u8> {
    let flexible = message.flexible.contains(version);
    let mut out = Vec::new();
    Contents { message, version, flexible, dice }.fields(&message.fields, Fill::Random, &mut out);
    out
}

pub fn uvarint(mut value: u32, out: &mut Vec<u8>) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

impl Contents<'_> {
    fn fields(&mut self, fields: &[Field], fill: Fill, out: &mut Vec<u8>) {
        let here: Vec<&Field> = fields.iter().filter(|f| f.versions.contains(self.version)).collect();
        for field in here.iter().filter(|f| f.tag.is_none()) {
            self.field(field, fill, out);
        }
        if !self.flexible {
            return;
        }
        let mut tags: Vec<(u32, Vec<u8>)> = Vec::new();
        for field in here.iter().filter(|f| f.tag.is_some() && fill == Fill::Random) {
            let (mut value, mut default) = (Vec::new(), Vec::new());
            self.field(field, fill, &mut value);
            self.field(field, Fill::Default, &mut default);
            // A default is left out, that is the canonical form.
            if value != default {
                tags.push((field.tag.unwrap(), value));
            }
        }
        tags.sort();
        if fill == Fill::Random && self.dice.one_in(16) {
            let length = self.dice.below(300) as usize;
            tags.push((1000 + self.dice.below(9) as u32, vec![7; length]));
        }
        uvarint(tags.len() as u32, out);
        for (tag, value) in tags {
            uvarint(tag, out);
            uvarint(value.len() as u32, out);
            out.extend(value);
        }
    }

    fn field(&mut self, field: &Field, fill: Fill, out: &mut Vec<u8>) {
        let flexible = self.flexible && field.flexible != Some(Versions::NONE);
        let may_be_null = field.nullable.contains(self.version);
        let null = match fill {
            Fill::Random => may_be_null && self.dice.one_in(4),
            Fill::Default => field.default_is_null(),
        };
        if null {
            return match &field.kind {
                FieldType::Struct(_) => out.push(if field.tag.is_some() { 0 } else { 0xff }),
                FieldType::Primitive(Primitive::String) if !flexible => out.extend((-1i16).to_be_bytes()),
                _ if flexible => out.push(0),
                _ => out.extend((-1i32).to_be_bytes()),
            };
        }
        if let (FieldType::Struct(_), true) = (&field.kind, may_be_null) {
            out.push(1);
        }
        match &field.kind {
            FieldType::Array(element) => {
                let count = if fill == Fill::Default { 0 } else { self.dice.below(4) as usize };
                length(count, flexible, out);
                for _ in 0..count {
                    self.value(element, None, fill, flexible, out);
                }
            }
            kind => self.value(kind, field.default.as_deref(), fill, flexible, out),
        }
    }

    fn value(&mut self, kind: &FieldType, default: Option<&str>, fill: Fill, flexible: bool, out: &mut Vec<u8>) {
        let primitive = match kind {
            FieldType::Primitive(primitive) => *primitive,
            FieldType::Struct(name) => {
                let message = self.message;
                return self.fields(&message.find_struct(name).unwrap().fields, fill, out);
            }
            FieldType::Array(_) => unreachable!("arrays stand in fields only"),
        };
        let number = match (fill, default) {
            (Fill::Random, _) => self.dice.roll() as i64,
            (Fill::Default, Some("true")) => 1,
            (Fill::Default, text) => text.and_then(|t| t.parse().ok()).unwrap_or(0),
        };
        match primitive {
            Primitive::Bool => out.push((number & 1) as u8),
            Primitive::Int8 => out.push(number as u8),
            Primitive::Int16 | Primitive::Uint16 => out.extend((number as i16).to_be_bytes()),
            Primitive::Int32 | Primitive::Uint32 => out.extend((number as i32).to_be_bytes()),
            Primitive::Int64 => out.extend(number.to_be_bytes()),
            Primitive::Float64 => out.extend((number as f64).to_be_bytes()),
            Primitive::Uuid => {
                out.extend(number.to_be_bytes());
                out.extend(number.wrapping_mul(31).to_be_bytes());
            }
            Primitive::String => self.string(fill, flexible, out),
            Primitive::Bytes | Primitive::Records => {
                let size = if fill == Fill::Default { 0 } else { self.dice.below(20) as usize };
                length(size, flexible, out);
                out.extend((0..size).map(|_| self.dice.roll() as u8));
            }
        }
    }

    fn string(&mut self, fill: Fill, flexible: bool, out: &mut Vec<u8>) {
        let letters = match fill {
            Fill::Default => 0,
            Fill::Random if self.dice.one_in(50) => 200,
            Fill::Random => self.dice.below(9),
        };
        let text: String = (0..letters).map(|_| ['a', 'Z', '-', 'ß', '€', '🦀'][self.dice.below(6) as usize]).collect();
        match flexible {
            true => uvarint(text.len() as u32 + 1, out),
            false => out.extend((text.len() as i16).to_be_bytes()),
        }
        out.extend(text.as_bytes());
    }
}

fn length(count: usize, flexible: bool, out: &mut Vec<u8>) {
    match flexible {
        true => uvarint(count as u32 + 1, out),
        false => out.extend((count as i32).to_be_bytes()),
    }
}
