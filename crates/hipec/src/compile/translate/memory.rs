//! What machine code reads and writes: what operands hold, pages' nodes, bits and integers.
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{AliasRegionData, InstBuilder, MemFlagsData, Type, Value};

use super::Translator;
use crate::image::Registers;
use crate::program::Index;

/// Bytes of a node.
pub(super) const ROW: i64 = 16;
/// The same, as a shift.
const ROW_SHIFT: i64 = 4;

pub(super) const fn field(field: usize) -> i32 {
    field as i32 * 4
}

/// Memory that never overlaps, for the compiler's knowledge of loads and stores.
#[derive(Clone, Copy)]
pub(super) enum Region {
    /// `depth` and callers.
    Calls,
    /// Links, fronts and backs.
    Links,
    Lens,
    /// The number of loose pages.
    Loose,
    Homes,
    Ordered,
    Bits,
    Numbers,
    Int(Index),
    Page(Index),
    Queue(Index),
    /// What the interpreter finds when it takes over.
    Place,
    /// The page that Replace gave up.
    Named,
}

impl Region {
    fn id(self) -> u32 {
        match self {
            Region::Calls => 0,
            Region::Links => 1,
            Region::Lens => 2,
            Region::Loose => 3,
            Region::Homes => 4,
            Region::Ordered => 5,
            Region::Bits => 6,
            Region::Numbers => 7,
            Region::Place => 8,
            Region::Named => 9,
            Region::Int(index) => 0x100 + u32::from(index.0),
            Region::Page(index) => 0x200 + u32::from(index.0),
            Region::Queue(index) => 0x300 + u32::from(index.0),
        }
    }
}

impl Translator<'_> {
    fn flags(&mut self, region: Region) -> MemFlagsData {
        let region = self
            .builder
            .func
            .dfg
            .alias_regions
            .insert(AliasRegionData { user_id: region.id(), description: "".into() });
        MemFlagsData::trusted().with_alias_region(Some(region))
    }

    pub(super) fn load(&mut self, ty: Type, region: Region, base: Value, offset: i32) -> Value {
        let flags = self.flags(region);
        self.builder.ins().load(ty, flags, base, offset)
    }

    pub(super) fn store(&mut self, region: Region, value: Value, base: Value, offset: i32) {
        let flags = self.flags(region);
        self.builder.ins().store(flags, value, base, offset);
    }

    pub(super) fn int(&mut self, index: Index) -> Value {
        match self.image.constants[usize::from(index.0)] {
            Some(value) => self.builder.ins().iconst(I64, value),
            None => {
                let offset = offset_of!(Registers, ints) as i32 + i32::from(index.0) * 8;
                self.load(I64, Region::Int(index), self.registers, offset)
            }
        }
    }

    pub(super) fn set_int(&mut self, index: Index, value: Value) {
        let offset = offset_of!(Registers, ints) as i32 + i32::from(index.0) * 8;
        self.store(Region::Int(index), value, self.registers, offset);
    }

    /// The link of the page in an operand, or 0.
    pub(super) fn link(&mut self, index: Index) -> Value {
        let offset = offset_of!(Registers, pages) as i32 + i32::from(index.0) * 4;
        self.load(I32, Region::Page(index), self.registers, offset)
    }

    /// The link of the page in an operand, which holds one.
    pub(super) fn page(&mut self, index: Index) -> Value {
        let link = self.link(index);
        if !self.facts.holding.contains(&index) {
            let is_none = self.builder.ins().icmp_imm_s(IntCC::Equal, link, 0);
            self.leave_if(is_none);
            self.facts.hold(index);
        }
        link
    }

    pub(super) fn set_page(&mut self, index: Index, link: Value) {
        let offset = offset_of!(Registers, pages) as i32 + i32::from(index.0) * 4;
        self.store(Region::Page(index), link, self.registers, offset);
        self.facts.forget(index);
    }

    /// Where the node of a link is.
    pub(super) fn node(&mut self, link: Value) -> Value {
        let number = self.builder.ins().uextend(I64, link);
        let offset = self.builder.ins().ishl_imm_u(number, ROW_SHIFT);
        self.builder.ins().iadd(self.nodes, offset)
    }

    /// What the links of pages begin at.
    pub(super) fn homes(&self) -> i32 {
        self.image.pages.homes() as i32
    }

    pub(super) fn bits_of(&mut self, link: Value) -> Value {
        let link = self.builder.ins().uextend(I64, link);
        self.builder.ins().iadd(self.bits, link)
    }

    /// Where one of a page's own integers is, unless it is always 0.
    pub(super) fn number(&mut self, link: Value, slot: u8) -> Option<(Value, i32)> {
        let (column, stride) = self.image.pages.column(slot)?;
        let link = self.builder.ins().uextend(I64, link);
        let offset = self.builder.ins().imul_imm_s(link, stride as i64 * 8);
        let place = self.builder.ins().iadd(self.numbers, offset);
        Some((place, (column as i32 - stride as i32 * self.homes()) * 8))
    }
}
