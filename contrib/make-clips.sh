#!/bin/sh
# Makes the two clips that the sandbox's video jobs end in: a sun drifting over rolling hills at dusk.
# Everything is drawn by ffmpeg's own sources; the results are committed, so a build needs no ffmpeg.
# usage: contrib/make-clips.sh [folder]      (Debian: apt install ffmpeg)
set -eu
folder=${1:-$(dirname "$0")/../src/gateway/sandbox/clips}

# clip NAME WIDTH HEIGHT
clip() {
    hill="format=yuva420p,geq=lum='p(X,Y)':cb='p(X,Y)':cr='p(X,Y)'"
    # All motion has a period that divides six seconds, so that a looping player shows no seam.
    ffmpeg -hide_banner -loglevel error -y \
        -f lavfi -i "gradients=s=$2x$3:r=24:d=6:n=3:c0=0x22305f:c1=0xb0567a:c2=0xf6b26b:x0=0:y0=0:x1=0:y1=$3:speed=0.00001" \
        -f lavfi -i "color=c=0xffe7b0:s=160x160:r=24:d=6" \
        -f lavfi -i "color=c=0x4b3b66:s=$2x$3:r=24:d=6" \
        -f lavfi -i "color=c=0x241f3d:s=$2x$3:r=24:d=6" \
        -filter_complex "
            [1]$hill:a='255*clip((72-hypot(X-80,Y-80))/24,0,1)'[sun];
            [2]$hill:a='255*clip(Y-H*0.70-H*0.05*sin(2*PI*(X/W+T/6))-H*0.02*sin(2*PI*(2*X/W+T/3)),0,1)'[far];
            [3]$hill:a='255*clip(Y-H*0.83-H*0.04*sin(2*PI*(X/W-T/3))-H*0.02*cos(2*PI*(3*X/W-T/2)),0,1)'[near];
            [0][sun]overlay=x='(W-w)/2+W*0.22*sin(2*PI*t/6)':y='H*0.30-h/2+H*0.08*cos(2*PI*t/6)'[sky];
            [sky][far]overlay[hills];
            [hills][near]overlay,format=yuv420p" \
        -c:v libx264 -profile:v baseline -level 3.0 -preset veryslow -crf 30 -g 48 \
        -map_metadata -1 -fflags +bitexact -flags:v +bitexact -movflags +faststart "$folder/$1.mp4"
}

clip landscape 640 360
clip portrait 360 640
