# Installs lowtide by its formula with the few words of Homebrew that it uses, in place of Homebrew itself.
#   ruby packaging/homebrew/check.rb FORMULA PREFIX
# It downloads the archive of this processor, compares its checksum, and runs the formula's install and test.
require "digest"
require "fileutils"
require "open-uri"
require "tmpdir"

# A directory of the prefix.
class Place
  def initialize(path) = @path = path
  def to_s = @path

  def install(*files)
    FileUtils.mkdir_p(@path)
    files.flatten.each do |file|
      from, name = file.is_a?(Hash) ? file.first : [file, File.basename(file)]
      raise "#{from} is missing" unless File.exist?(from)

      FileUtils.cp(from, File.join(@path, name))
    end
  end
end

class Formula
  class << self
    attr_reader :checked

    def values = @values ||= {}
    %i[desc homepage version license url sha256 depends_on].each do |word|
      define_method(word) { |value = nil| value ? values[word] = value : values[word] }
    end

    def on_intel = RUBY_PLATFORM.start_with?("x86_64") && yield
    def on_arm = RUBY_PLATFORM.start_with?("aarch64") && yield
    def test(&block) = @checked = block
  end

  attr_reader :bin, :man1, :bash_completion, :zsh_completion, :fish_completion, :doc

  def initialize(prefix)
    places = { bin: "bin", man1: "share/man/man1", bash_completion: "etc/bash_completion.d", doc: "share/doc/lowtide",
               zsh_completion: "share/zsh/site-functions", fish_completion: "share/fish/vendor_completions.d" }
    places.each { |name, path| instance_variable_set("@#{name}", Place.new(File.join(prefix, path))) }
  end

  def version = self.class.version
  def shell_output(command) = `#{command}`.tap { raise "#{command} failed" unless $?.success? }
  def assert_match(text, output) = output.include?(text) || raise("#{output} has no #{text}")
end

formula, prefix = ARGV.map { |path| File.expand_path(path) }
load formula
prefix or abort "usage: check.rb FORMULA PREFIX"
archive = URI.parse(Lowtide.url).open(&:read)
Digest::SHA256.hexdigest(archive) == Lowtide.sha256 or abort "#{Lowtide.url} has another checksum"
Dir.mktmpdir do |work|
  Dir.chdir(work)
  File.binwrite("archive.tar.gz", archive)
  system("tar", "-xzf", "archive.tar.gz", exception: true)
  # Homebrew enters the one directory of an archive.
  Dir.chdir(Dir["*/"].first)
  installed = Lowtide.new(prefix)
  installed.install
  installed.instance_eval(&Lowtide.checked)
end
